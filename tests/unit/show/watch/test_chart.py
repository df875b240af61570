"""Charts of braille dots: their size, their axes, and values that are not numbers."""

from __future__ import annotations

import random

import pytest

from stoker.show.watch.chart import Canvas, Frame, axis_of, chart, number_text, step_for

NAN, INFINITE = float("nan"), float("inf")


def plain(x: list[float], y: list[float], width: int = 30, height: int = 8) -> list[str]:
    return [line.plain for line in chart(x, y, Frame(width, height))]


class TestCanvas:
    def test_each_dot_has_its_place(self) -> None:
        for x in range(2):
            for y in range(4):
                canvas = Canvas(1, 1)
                canvas.dot(x, y)
                (line,) = canvas.lines()
                assert bin(ord(line) - 0x2800).count("1") == 1
        canvas = Canvas(1, 1)
        canvas.dot(0, 3)
        assert canvas.lines() == ["⠁"]

    def test_what_is_outside_is_left_out(self) -> None:
        canvas = Canvas(2, 1)
        canvas.line((-5, -5), (-1, 9))
        assert canvas.lines() == ["  "]

    def test_a_line_has_no_gap(self) -> None:
        canvas = Canvas(4, 1)
        canvas.line((0, 0), (7, 0))
        assert canvas.lines() == ["⣀⣀⣀⣀"]


class TestAxis:
    @pytest.mark.parametrize(
        ("values", "most", "ticks"),
        [
            ([0.0, 1.0], 3, (0.0, 0.5, 1.0)),
            ([0.3, 2.1], 4, (0.5, 1.0, 1.5, 2.0)),
            ([-1.0, 1.0], 3, (-1.0, 0.0, 1.0)),
        ],
    )
    def test_ticks_are_round(
        self, values: list[float], most: int, ticks: tuple[float, ...]
    ) -> None:
        assert axis_of(values, most).ticks == pytest.approx(ticks)

    def test_has_two_to_so_many_ticks_within_the_values(self) -> None:
        chance = random.Random(3)
        for _ in range(2000):
            values = [chance.uniform(-1, 1) * 10 ** chance.randint(-8, 8) for _ in range(3)]
            most = chance.randint(2, 9)
            axis = axis_of(values, most)
            assert 2 <= len(axis.ticks) <= 6 or len(axis.ticks) <= most
            margin = (axis.high - axis.low) * 1e-6
            assert axis.low - margin <= axis.ticks[0] < axis.ticks[-1] <= axis.high + margin

    @pytest.mark.parametrize("value", [0.0, 5.0, -3.0, 1e-300, 1e300])
    def test_one_value_has_room_around_it(self, value: float) -> None:
        axis = axis_of([value, value], 3)
        assert axis.low < value < axis.high

    @pytest.mark.parametrize(("least", "step"), [(0.3, 0.5), (1, 1), (1.2, 2), (60, 100)])
    def test_steps(self, least: float, step: float) -> None:
        assert step_for(least) == pytest.approx(step)


class TestChart:
    def test_has_the_size_that_was_requested(self) -> None:
        chance = random.Random(1)
        for width in (12, 30, 77):
            for height in (4, 8, 21):
                y = [chance.gauss(0, 1) * 10 ** chance.randint(-4, 6) for _ in range(50)]
                lines = plain(list(map(float, range(50))), y, width, height)
                assert len(lines) == height
                assert {len(line) for line in lines} == {width}

    def test_a_falling_curve(self) -> None:
        assert plain([0, 10], [1, 0], 12, 6) == [
            "1┤⠑⠤⡀       ",
            " │  ⠈⠢⢄     ",
            " │     ⠑⠢⡀  ",
            "0┤       ⠈⠒⢄",
            " └──────────",
            "  0   5   10",
        ]

    def test_is_empty_without_points(self) -> None:
        assert "no step yet" in "\n".join(plain([], []))

    @pytest.mark.parametrize("bad", [NAN, INFINITE, -INFINITE, 1.7e308])
    def test_says_that_nothing_is_a_number(self, bad: float) -> None:
        assert "not a number" in "\n".join(plain([1, 2], [bad, bad]))

    def test_what_is_not_a_number_leaves_a_gap(self) -> None:
        whole = plain([0, 1, 2, 3], [1, 1, 1, 2])
        with_gap = plain([0, 1, 2, 3], [1, NAN, NAN, 2])
        dots = [
            sum("\u2800" < c <= "\u28ff" for c in "".join(lines)) for lines in (whole, with_gap)
        ]
        assert 0 < dots[1] < dots[0] // 3

    def test_one_point(self) -> None:
        assert any("\u2800" < c <= "\u28ff" for c in "".join(plain([5], [0.3])))

    def test_a_range_of_x_that_is_wider_than_the_points(self) -> None:
        frame = Frame(40, 6, x_range=(0.0, 100.0))
        lines = [line.plain for line in chart([0.0, 10.0], [1.0, 2.0], frame)]
        assert lines[-1].split() == ["0", "50", "100"]
        assert all(not line[12:].strip() for line in lines[:-2])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.5, "-0.5"),
        (0.35, "0.35"),
        (1234, "1234"),
        (12000, "12k"),
        (2.5e6, "2.5M"),
        (2e-5, "2e-05"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text
