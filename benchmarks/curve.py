"""Draw a run's accuracy over its epochs: python benchmarks/curve.py RUN OUT.svg"""

from __future__ import annotations

import sys
from pathlib import Path

from stoker.run.directory import Run

WIDTH, HEIGHT, EDGE = 640, 320, 48


def curve(run: Run) -> str:
    """An SVG of the top-1 accuracy on the evaluation split, by epoch."""
    points = [(e["epoch"], e["top1"] / e["images"]) for e in run.merged("evaluation")]
    last = max(epoch for epoch, _ in points)
    low = min(share for _, share in points) // 0.1 / 10

    def x(epoch: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * epoch / last

    def y(share: float) -> float:
        return HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (share - low) / (1 - low)

    lines = []
    for tenth in range(round(low * 10), 11):
        level = y(tenth / 10)
        lines.append(f'<path d="M{EDGE} {level:.1f}H{WIDTH - EDGE}" stroke="#ddd"/>')
        lines.append(
            f'<text x="{EDGE - 8}" y="{level + 4:.1f}" text-anchor="end">{tenth}0 %</text>'
        )
    for epoch, _ in points[1::2]:
        position = f'x="{x(epoch):.1f}" y="{HEIGHT - EDGE + 18}"'
        lines.append(f'<text {position} text-anchor="middle">{epoch:.0f}</text>')
    track = " ".join(f"{x(epoch):.1f},{y(share):.1f}" for epoch, share in points)
    lines.append(f'<polyline points="{track}" fill="none" stroke="#c2410c" stroke-width="2"/>')
    lines += [f'<circle cx="{x(e):.1f}" cy="{y(s):.1f}" r="3" fill="#c2410c"/>' for e, s in points]
    final = points[-1]
    lines.append(
        f'<text x="{x(final[0]) - 6:.1f}" y="{y(final[1]) + 22:.1f}" text-anchor="end">'
        f"{final[1]:.2%} top-1 at epoch {final[0]:.0f}</text>"
    )
    lines.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">epoch</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        + "".join(lines)
        + "</svg>\n"
    )


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(curve(Run(sys.argv[1])))
