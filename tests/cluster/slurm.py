"""A real SLURM on this machine: a controller and some slurmd, each a node of its own.

Nothing outside one folder is written, everything listens on loopback on free ports, and all of it
is ended by process id. Partition `low` is preempted by `high`, with ten seconds to save.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from waiting import until

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue")
PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
CONF = """
ClusterName=stoker
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket/s,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld
SlurmdLogFile={root}/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
MessageTimeout=10
KillWait=5
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000,batch_sched_delay=0
PropagateResourceLimits=NONE
MpiDefault=none
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/log/completed
SwitchType=switch/none
GresTypes=gpu
NodeName=DEFAULT CPUs=2 SocketsPerBoard=1 CoresPerSocket=2 RealMemory=4000 Gres=gpu:1
"""
PARTITIONS = """
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=10 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> str | None:
    """Why SLURM cannot be started here; None if it can."""
    if os.geteuid() != 0:
        return "a SLURM for tests needs root"
    gone = [name for name in PROGRAMS if shutil.which(name, path=PATHS) is None]
    if gone:
        return (
            f"no {', '.join(gone)}: apt-get install slurmctld slurmd slurm-client munge "
            "slurm-wlm-basic-plugins"
        )
    return None


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class SlurmCluster:
    """A controller and nodes n1, n2, ... of two cores, in a folder that all users can enter."""

    def __init__(self, root: Path, nodes: int = 3) -> None:
        self.root = root
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "PATH": PATHS,
            "SLURM_CONF": str(root / "slurm.conf"),
            "PYTHONUNBUFFERED": "1",
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when every node runs a command."""
        ports = free_ports(1 + len(self.nodes))
        for name in ("state", "log", "munge", "munge/socket", *(f"spool/{n}" for n in self.nodes)):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "munge").chmod(0o711)
        key = self.root / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        (self.root / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        (self.root / "cgroup.conf").write_text("CgroupAutomount=no\n")
        host = socket.gethostname().partition(".")[0]
        lines = [
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port}"
            for name, port in zip(self.nodes, ports[1:], strict=True)
        ]
        text = CONF.format(root=self.root, host=host, ports=ports) + "\n".join(lines) + PARTITIONS
        (self.root / "slurm.conf").write_text(text)
        self._start_munged()
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for name in self.nodes:
            self.start_node(name)
        until(self._is_ready, 60, 0.5)

    def _start_munged(self) -> None:
        munge = self.root / "munge"
        files = {"socket": munge / "socket" / "s", "key-file": munge / "key"}
        files |= {"pid-file": munge / "pid", "log-file": munge / "log", "seed-file": munge / "seed"}
        flags = [f"--{name}={path}" for name, path in files.items()]
        self._start("munged", "munged", "--foreground", "--force", "--num-threads=2", *flags)
        until(files["socket"].exists)

    def _start(self, name: str, *command: str) -> None:
        program = shutil.which(command[0], path=PATHS)
        assert program
        with (self.root / "log" / f"{name}.printed").open("ab") as printed:
            self._daemons[name] = subprocess.Popen(
                [program, *command[1:]],
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        """`sinfo` says idle before a node has answered: run something."""
        try:
            nodes = str(len(self.nodes))
            self.call("srun", "-N", nodes, "--time=1", "--immediate=5", "true", within_s=15)
        except subprocess.SubprocessError:
            return False
        return True

    def call(self, *words: str, within_s: float = 60) -> str:
        """What a command of SLURM printed."""
        program = shutil.which(words[0], path=PATHS)
        done = subprocess.run(
            [program or words[0], *words[1:]],
            env=self.variables,
            check=True,
            capture_output=True,
            text=True,
            timeout=within_s,
        )
        return done.stdout

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Everything on a node dies at once: its slurmd, its steps and their processes."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        for _ in range(2):  # what was started while the others died
            for pid in self.processes(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def processes(self, node: str) -> list[int]:
        """The processes of a node: those that write its log, and those of its jobs."""
        log = self.root / "log" / node
        marks = (f"SLURM_CONF={self.root}/slurm.conf".encode(), f"SLURMD_NODENAME={node}".encode())
        pids = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            with suppress(OSError):
                variables = (folder / "environ").read_bytes().split(b"\0")
                links = [file.readlink() for file in (folder / "fd").iterdir()]
                if log in links or all(mark in variables for mark in marks):
                    pids.append(int(folder.name))
        return pids

    def state(self, job: str) -> str:
        """The state of a job, such as RUNNING; GONE where SLURM has forgotten it."""
        with suppress(subprocess.CalledProcessError):
            for word in self.call("scontrol", "-o", "show", "job", job).split():
                if word.startswith("JobState="):
                    return word.removeprefix("JobState=")
        return "GONE"

    def field(self, job: str, name: str) -> str:
        words = self.call("scontrol", "-o", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def ended(self, job: str) -> bool:
        return self.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")

    def stop(self) -> None:
        """End everything that was started, and whatever it started."""
        with suppress(subprocess.SubprocessError):
            self.call("scancel", "--full", "--signal=KILL", "--user=root", within_s=10)
        for name in ["slurmctld", *self.nodes, "munged"]:
            if daemon := self._daemons.pop(name, None):
                daemon.terminate()
                with suppress(subprocess.TimeoutExpired):
                    daemon.wait(timeout=5)
                daemon.kill()
                daemon.wait()
        for name in self.nodes:
            for pid in self.processes(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        left = [pid for name in self.nodes for pid in self.processes(name)]
        assert not left, f"processes are left: {left}"
