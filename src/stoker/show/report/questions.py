"""Questions about what a run learned and what it keeps, answered from the record alone.

Invariants: an answer is one or two plain sentences, and the evidence follows it. Where evidence is
missing, the answer says which. Pure functions of the facts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.history.curves import Floats
from stoker.run.kinds import Event
from stoker.show.report.charts import Bars, Chart, axis_values, rate_chart
from stoker.show.report.elements import PageTable
from stoker.show.report.facts import RunFacts
from stoker.text import one_line, plural, size

LAST_PART = 2 / 3
"""Where in a run its last third begins."""
ENOUGH_EVALUATIONS = 3
LARGE_GAP = 0.10
"""A gap between training and evaluation accuracy above which it is worth a word."""
RISE = 1.05
"""An evaluation loss that is so many times its lowest value has risen."""

CHECKPOINT_FILES = {
    "weights.safetensors": "the weights of the model: enough to use it elsewhere",
    "ema.safetensors": "the moving average of the weights, which evaluation and export use",
    "state.pt": "what training needs to go on: the optimiser's state, such as momentum",
    "manifest.json": "step, classes and input of the model; size and hash of each file",
    "COMMITTED": "the hash of manifest.json, written last: the checkpoint is complete",
}
SCHEDULES = {
    "cosine": "A cosine schedule stays near the peak at first, then falls, and ends with small "
    "steps in which the weights settle.",
    "onecycle": "A one-cycle schedule rises to the peak, then falls in a straight line, so that "
    "the weights settle at the end.",
    "step": "A step schedule keeps the rate, and multiplies it by a factor at given epochs.",
    "constant": "The rate stays the same to the end.",
}
"""Why a learning rate follows its schedule."""
RATE_KEYS = (
    *("scheduler", "lr", "lr_base", "lr_base_size", "lr_base_scale", "warmup_epochs"),
    *("min_lr_ratio", "decay_epochs", "decay_rate"),
)

Evidence = str | PageTable | Bars | Chart


@dataclass(frozen=True)
class Question:
    """A question, its answer, and what the answer rests on."""

    title: str
    answer: str
    evidence: tuple[Evidence, ...] = ()


def top1(event: Event) -> float:
    return float(event["top1"] / event["images"])


def points_of(change: float) -> str:
    """A change of a share, such as +1.2 points."""
    return f"{round(100 * change, 1) + 0.0:+.1f} points"  # + 0.0: no "-0.0"


def fully_trained(facts: RunFacts) -> Question:
    title = "Is the model fully trained?"
    evaluations = facts.history.evaluations
    evidence: list[Evidence] = [schedule_text(facts), *target_text(facts)]
    if not evaluations:
        missing = "It cannot be known: the run has no evaluation, so nothing shows what it learned."
        return Question(title, missing, tuple(evidence))
    trend, last = last_third(evaluations), evaluations[-1]
    evidence.append(evaluation_table(evaluations))
    is_complete = 0 < facts.steps_planned <= facts.history.steps
    if trend is None:
        evidence.insert(
            0,
            "Missing: a trend needs at least three evaluations in the last third of the run; there "
            f"{'is' if len(evaluations) == 1 else 'are'} {len(evaluations):,} in all. A smaller "
            "--eval-every makes more.",
        )
        answer = (
            "Perhaps: the schedule is complete, but too few evaluations show whether it still rose."
            if is_complete
            else "No: the schedule is not complete."
        )
    else:
        change, noise = trend
        evidence.insert(
            0,
            f"The accuracy moved by {points_of(change)} over the last third of the run, by a "
            f"straight line through its evaluations. Up to {100 * noise:.1f} points are noise: two "
            "standard errors of one evaluation, at least one image.",
        )
        answer = trained_answer(change, noise, is_complete)
        if abs(change) <= noise and top1(last) - noise <= 1 / max(len(facts.record["classes"]), 1):
            answer = f"No: {top1(last):.1%} is no more than guessing, and did not rise."
    if last["top1"] >= last["images"]:
        answer = (
            f"Yes, as far as its evaluation can show: all {last['images']:,} images are right. "
            "More, or harder ones, would show whether it still learns."
        )
    return Question(title, answer, tuple(evidence))


def trained_answer(change: float, noise: float, is_complete: bool) -> str:
    much = f"{100 * abs(change):.1f} points over the last third of the run"
    if change > noise:
        more = "more epochs may help" if is_complete else "let it go on"
        return f"Not yet: the accuracy still rose by {much}; {more}."
    if change < -noise:
        return f"It is past its best: the accuracy fell by {much}. Use the best checkpoint."
    if is_complete:
        return f"Yes, as far as this recipe goes: the accuracy moved by only {much}."
    return (
        f"Not to the end of its schedule, though the accuracy moved by only {much}. A falling "
        "learning rate often adds a little at the end."
    )


def last_third(evaluations: Sequence[Event]) -> tuple[float, float] | None:
    """How the accuracy moved over the last third of the run, and how much of that may be noise: two
    standard errors of one evaluation, at least one image. None where there are too few."""
    end = evaluations[-1]["position"]
    late = [event for event in evaluations if event["position"] >= LAST_PART * end]
    if len(late) < ENOUGH_EVALUATIONS:
        return None
    places = np.array([event["position"] for event in late], float) / max(end, 1)
    shares = np.array([top1(event) for event in late])
    slope = float(np.polyfit(places, shares, 1)[0])
    share, images = min(top1(late[-1]), 1.0), late[-1]["images"]
    noise = max(2 * math.sqrt(share * (1 - share) / images), 1 / images)
    return slope * float(places[-1] - places[0]), noise


def schedule_text(facts: RunFacts) -> str:
    """How far the schedule came."""
    done, planned, end = facts.history.steps, facts.steps_planned, facts.history.end
    reason = one_line(end["reason"]) if end else ""
    because = f" ({reason})" if reason else ""
    if not planned:
        return f"{plural(done, 'step')} made; how many were planned is not on record."
    share = f"step {done:,} of {planned:,} ({done / planned:.0%})"
    if done >= planned:
        return f"The schedule is complete: {share}."
    if facts.is_running:
        return f"The run is at {share}."
    return f"The schedule is not complete: the run ended at {share}{because}."


def target_text(facts: RunFacts) -> list[str]:
    """Whether the accuracy that the recipe asks for was reached; nothing where it asks for none."""
    target, best = facts.number("target"), facts.history.best
    if not target or best is None:
        return []
    reached = next((e for e in facts.history.evaluations if top1(e) >= target), None)
    if reached:
        return [f"The target of {target:.1%} was reached at epoch {reached['epoch']:.2f}."]
    return [f"The target of {target:.1%} was not reached: the best is {top1(best):.1%}."]


def evaluation_table(evaluations: Sequence[Event]) -> PageTable:
    """The latest evaluations."""
    rows = [
        (
            f"{event['epoch']:.2f}",
            f"{top1(event):.2%}",
            f"{event['top5'] / event['images']:.2%}",
            loss_text(event.get("loss")),
            f"{event['images']:,}",
        )
        for event in evaluations[-10:]
    ]
    shown = f"the latest {len(rows)} of " if len(evaluations) > len(rows) else ""
    caption = f"Evaluations: {shown}{len(evaluations):,}"
    columns = ("epoch", "top-1", "top-5", "loss", "images")
    return PageTable(caption, columns, rows, frozenset(range(5)))


def loss_text(loss: float | None) -> str:
    if loss is None:
        return "unknown"
    return f"{loss:.4f}" if math.isfinite(loss) else "not finite"


def overfitting(facts: RunFacts) -> Question:
    title = "Is it overfitting?"
    evaluations, curve = facts.history.evaluations, facts.history.sums.curve()
    if not evaluations or not len(curve.position):
        missing = "steps" if evaluations else "evaluations"
        return Question(title, f"It cannot be known: the run has no {missing} to compare.")
    positions = np.array([event["position"] for event in evaluations], float)
    shares = np.array([top1(event) for event in evaluations])
    gaps = np.interp(positions, curve.position, curve.top1) - shares
    table = gap_table(evaluations, gaps, shares)
    if not math.isfinite(gaps[-1]):
        return Question(title, "It cannot be known: the training diverged.", (table,))
    gap = f"training accuracy {gaps[-1] + shares[-1]:.1%}, evaluation accuracy {shares[-1]:.1%}"
    caution = (
        "Training accuracy is measured under augmentation, on images that the model is just "
        "learning from, while evaluation sees the middle of each image, unchanged: on the same "
        "views the training accuracy would be higher. A gap that grows says more than its size."
    )
    evidence: list[Evidence] = [*direction(gaps), *loss_direction(facts), caution, table]
    return Question(title, overfitting_answer(facts, gaps, gap), tuple(evidence))


def overfitting_answer(facts: RunFacts, gaps: Floats, gap: str) -> str:
    rise = loss_rise(facts)
    is_growing = len(gaps) >= ENOUGH_EVALUATIONS and gaps[-1] > gaps[len(gaps) // 2] + 0.02
    if rise and gaps[-1] > 0:
        return f"Yes: the evaluation loss rose to {rise:.2f} times its lowest value; {gap}."
    if gaps[-1] > LARGE_GAP:
        grows = "and grows" if is_growing else "and does not grow"
        grows = grows if len(gaps) >= ENOUGH_EVALUATIONS else "in too few evaluations for a trend"
        return f"There are signs of it: the gap is {points_of(gaps[-1])} {grows}; {gap}."
    if len(gaps) < ENOUGH_EVALUATIONS:
        few = plural(len(gaps), "evaluation")
        return f"No sign of it, but {few} cannot show a trend: {gap}."
    if is_growing:
        return f"Not yet, but the gap grows: it is {points_of(gaps[-1])}; {gap}."
    return f"No: {gap}, and the gap does not grow."


def loss_rise(facts: RunFacts) -> float | None:
    """How many times its lowest value the last evaluation loss is; None where it did not rise."""
    losses = [event.get("loss") for event in facts.history.evaluations]
    known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if len(known) < ENOUGH_EVALUATIONS or min(known) <= 0:
        return None
    ratio = known[-1] / min(known)
    return ratio if ratio > RISE else None


def direction(gaps: Floats) -> list[str]:
    if len(gaps) < 2 or not np.isfinite(gaps[[0, len(gaps) // 2, -1]]).all():
        return []
    texts = [points_of(gaps[0]), points_of(gaps[len(gaps) // 2]), points_of(gaps[-1])]
    return [
        f"The gap (training minus evaluation accuracy) was {texts[0]} at the first evaluation, "
        f"{texts[1]} half-way and {texts[2]} at the last."
    ]


def loss_direction(facts: RunFacts) -> list[str]:
    """The lowest evaluation loss, and the last one."""
    own = [e for e in facts.history.evaluations if math.isfinite(e.get("loss", math.nan))]
    if not own:
        return ["Missing: the evaluations have no loss on record."]
    lowest = min(own, key=lambda event: event["loss"])
    text = f"The evaluation loss was lowest at the last evaluation ({lowest['loss']:.3f})."
    if lowest is not own[-1]:
        text = (
            f"The evaluation loss was lowest at epoch {lowest['epoch']:.2f} "
            f"({lowest['loss']:.3f}); at the last evaluation it was {own[-1]['loss']:.3f}."
        )
    softened = [n for n in ("label_smoothing", "mixup_alpha", "cutmix_prob") if facts.number(n)]
    if softened:
        text += f" With {' and '.join(softened)} the training loss cannot be compared with it."
    return [text]


def gap_table(
    evaluations: Sequence[Event],
    gaps: Floats,
    shares: Floats,
) -> PageTable:
    rows = [
        (f"{event['epoch']:.2f}", f"{gap + share:.2%}", f"{share:.2%}", points_of(gap))
        for event, gap, share in zip(evaluations, gaps, shares, strict=True)
    ][-10:]
    columns = ("epoch", "training top-1", "evaluation top-1", "gap")
    return PageTable("Training and evaluation accuracy", columns, rows, frozenset(range(4)))


def learning_rate(facts: RunFacts) -> Question:
    title = "What did the learning rate do, and why?"
    points = [point for point in facts.history.points if point.lr is not None]
    derived = facts.start["derived"] if facts.start else ""
    record = [f"From the record: {derived}."] if derived else []
    reasons: list[Evidence] = [*reason_texts(facts), *record, rate_table(facts)]
    if not points:
        return Question(title, "It is not on record: no step was made.", tuple(reasons))
    rates = [point.lr or 0.0 for point in points]
    peak = max(range(len(rates)), key=rates.__getitem__)
    name = facts.values.get("scheduler")
    is_known = isinstance(name, str)
    schedule = f"the schedule '{str(name)[:40]}'" if is_known else "an unknown schedule"
    warm_up = facts.number("warmup_epochs")
    how = f", after a warm-up of {plural(warm_up, 'epoch')}" if warm_up else ", without a warm-up"
    how = how if warm_up is not None else ""
    answer = (
        f"It was highest at {rates[peak]:.4g} (epoch {points[peak].epoch:.2f}) and came to "
        f"{rates[-1]:.4g}{how}, by {schedule}."
    )
    return Question(title, answer, (*reasons, rate_chart(facts, axis_values(facts))))


def reason_texts(facts: RunFacts) -> list[str]:
    """Why the rate is what it is, from the recipe."""
    texts = []
    if text := SCHEDULES.get(str(facts.values.get("scheduler"))):
        texts.append(text)
    if facts.number("warmup_epochs"):
        texts.append(
            "Warm-up: the first steps are small, because the gradients of untrained "
            "weights are large and point anywhere."
        )
    own, base, base_size = (facts.number(name) for name in ("lr", "lr_base", "lr_base_size"))
    if own:
        texts.append(f"The peak is set in the recipe: lr = {own:g}.")
    elif base and base_size:
        texts.append(
            f"The peak follows from the batch: lr_base = {base:g} is meant for {base_size:g} "
            "images, and a larger batch has a less noisy gradient."
        )
    return texts


def rate_table(facts: RunFacts) -> PageTable:
    rows = [
        (name, str(facts.values[name])[:200], facts.origins.get(name, "not on record"))
        for name in RATE_KEYS
        if name in facts.values
    ]
    return PageTable("The recipe of the learning rate", ("key", "value", "origin"), rows)


def set_size(facts: RunFacts) -> Question:
    title = "How large is the data set?"
    data, classes = facts.data, len(facts.record["classes"])
    if data.dataset is None:
        evaluated = facts.history.evaluations
        more = f", evaluated on {plural(evaluated[-1]['images'], 'image')}" if evaluated else ""
        count = plural(facts.samples, "training image") if facts.samples else "images unknown"
        answer = f"By the record: {count} of {plural(classes, 'class')}{more}."
        return Question(title, answer, (data.problem, "Missing: its bytes."))
    images = data.images
    total = sum(data.bytes_of(split) for split in images)
    answer = (
        f"{plural(sum(images.values()), 'image')} of {plural(classes, 'class')}, "
        f"{size(total)} as they are stored."
    )
    rows = [
        (split, f"{count:,}", size(data.bytes_of(split)), size(data.bytes_of(split) / count))
        for split, count in images.items()
        if count
    ]
    columns = ("split", "images", "bytes", "bytes an image")
    table = PageTable("Splits of the packed set", columns, rows, frozenset((1, 2, 3)))
    return Question(title, answer, (f"Stored as {data.dataset.codec} in {data.path}.", table))


def checkpoint_parts(facts: RunFacts) -> Question:
    title = "Which files is a checkpoint made of?"
    own = facts.checkpoint
    names = list(own.sizes) if own else [n for n in CHECKPOINT_FILES if not n.startswith("ema")]
    rows = [(name, CHECKPOINT_FILES.get(name, "unknown")) for name in names]
    table = PageTable("What each file is for", ("file", "what it is for"), rows)
    if own is None:
        answer = "None is left in this directory; one has these files."
        return Question(title, answer, (table,))
    return Question(title, f"{plural(len(names), 'file')}: {', '.join(names)}.", (table,))


def checkpoint_size(facts: RunFacts) -> Question:
    title = "How big is a checkpoint?"
    own, saved = facts.checkpoint, facts.history.checkpoints
    saves: list[Evidence] = []
    if saved:
        blocked = sum(event["blocked_s"] for event in saved)
        saves.append(
            f"{plural(len(saved), 'checkpoint')} saved; training waited {blocked:.2f} s for them "
            "in all."
        )
    if own is None:
        if not saved:
            return Question(title, "No checkpoint is on record.")
        answer = f"{size(saved[-1]['bytes'])}, by the record of the last save."
        return Question(title, answer, (*saves, "Missing: the checkpoint itself is not here."))
    rows = [(name, f"{count:,}", size(count)) for name, count in own.sizes.items()]
    which = "the best so far" if own.is_best else "the newest"
    caption = f"Checkpoint {own.name} of step {own.step:,}, {which}"
    table = PageTable(caption, ("file", "bytes", ""), rows, frozenset((1, 2)))
    total = sum(own.sizes.values())
    weights = own.sizes.get("weights.safetensors", 0)
    answer = (
        f"{size(total)}, of which {size(weights)} ({weights / max(total, 1):.0%}) are the weights "
        "of the model."
    )
    return Question(title, answer, (*saves, table))
