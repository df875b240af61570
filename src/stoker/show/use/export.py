"""What `stoker export` prints: what was written, and how well it agrees with the model."""

from __future__ import annotations

from pathlib import Path

from stoker.text import plural, shown, size
from stoker.use.export.model_card import short
from stoker.use.export.write import ExportReport


def lines(report: ExportReport, out: Path) -> list[str]:
    """The lines for an export to a folder."""
    figures = report.figures
    result = "not evaluated by the run"
    if figures is not None:
        share = figures.top1 / max(figures.images, 1)
        result = f"top-1 {share:.2%} of {plural(figures.images, 'image')}"
    model = f"{shown(report.model)}, {plural(report.classes, 'class')}"
    texts = [f"{shown(report.origin)}: {model}, {result}"]
    for name, count in report.bytes.items():
        text = f"  {name:<18} {size(count)}"
        if one := report.differences.get(name):
            other = (
                f"another class for {one.other_classes}" if one.other_classes else "same classes"
            )
            text += (
                f"; on {report.checked_on}: {other}, logits within {short(one.logits)}, "
                f"probabilities within {short(one.probabilities)} of PyTorch's"
            )
        texts.append(text)
    if "generated" in report.checked_on:
        texts.append(
            "note: the run's packed set is not there, so the comparison used generated images"
        )
    texts.append(
        f"written to {shown(str(out))}, with config.json, classes.txt and a model card (README.md)"
        ": state a license in it before you share the model"
    )
    return texts
