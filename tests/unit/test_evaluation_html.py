"""The HTML report: well-formed and alone in the world whatever it shows, complete, and clear about what it lacks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.evaluation.html_report import render
from decoder_client.evaluation.results import (
    MODEL,
    PLAIN,
    Difference,
    Environment,
    Results,
    Sample,
    SampleToken,
    StoreInfo,
)
from dresd import page as shared
from dresd.page.axes import counting_axis, doubling_axis, even_axis
from dresd.page.markup import readable
from tests.support.results import BENCHED, METHODS, NOTHING_RUN, PLAIN_ALONE, RECORDS, REPLAYED, TIMED, answers, method

ODD_TEXTS = (
    "", " ", "\n", "\r\n\t", "\x00\x1b[31m\x7f\x85", "\u202eright to left\u2066", "\u200b", "\u200d", "\ud83d",
    "\ude00\ud83d", "\ufffe\uffff\ufdd0", "\u2028\u2029", "\u0301", "مرحبا", "</style><script>alert(1)</script>",
    "\"'><b>", "&amp;&#0;", "]]>", "<!--", "--><!", "x" * 500,
)  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=())) | st.sampled_from(ODD_TEXTS)


def tree(page: str) -> ElementTree.Element:
    """The page as XML, which forgives nothing."""
    start, rest = page.split("\n", 1)
    assert start == "<!doctype html>"
    return ElementTree.fromstring(rest.encode("utf-8"))  # noqa: S314 (our own page)


def words(node: ElementTree.Element) -> str:
    return " ".join("".join(node.itertext()).split())


def sections(page: str) -> dict[str, ElementTree.Element]:
    return {words(one.find("h2")): one for one in tree(page).iter("section")}


def first_cells(section: ElementTree.Element) -> list[str]:
    return [words(row[0]) for row in section.find(".//table/tbody")]


class Balance(HTMLParser):
    """Reads as a browser's parser does, and keeps what is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, _attrs: object) -> None:
        self.open.append(tag)
        self.tags.append(tag)

    def handle_startendtag(self, tag: str, _attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_well_formed_as_html_and_as_xml(record: Results) -> None:
    page = render(record)
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert [node.tag.lower() for node in tree(page).iter()] == parser.tags


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_asks_nothing_of_the_network_and_runs_nothing(record: Results) -> None:
    nodes = list(tree(render(record)).iter())
    assert not {node.tag for node in nodes} & {"script", "link", "img", "iframe", "object", "embed", "base", "a", "use"}
    names = {name for node in nodes for name in node.attrib}
    assert not [name for name in names if name.startswith("on") or name in ("href", "src", "srcset", "style")]
    (style,) = (node.text for node in nodes if node.tag == "style")
    assert "url(" not in style
    assert "@import" not in style
    policy = [node.get("content") for node in nodes if node.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def with_text(words: str) -> Results:
    """Every text that comes from data is this one."""
    ours = replace(METHODS[-1], label=words, method=words)
    environment = Environment((words,), words, words, words, words, words, 1, 1, {words: words}, {words: words})
    return replace(
        BENCHED,
        model=words,
        weights_fingerprint=words,
        prompts=(words, words),
        store=StoreInfo(words, 1),
        settings={"prompts": words, f"a{words}": (words, words)},
        environment=replace(environment, versions={"torch": words, f"a{words}": words}),
        methods=(METHODS[0], ours),
        comparisons=tuple(replace(one, label=words, other=words) for one in BENCHED.comparisons),
        samples=(Sample(words, words, (SampleToken(words, words, 1), SampleToken(words, MODEL, 2))),),
        notes=(words,),
    )


@given(TEXTS.filter(lambda words: words not in (PLAIN, MODEL)))
def test_no_text_changes_the_page(words: str) -> None:
    page = render(with_text(words))
    page.encode("utf-8")
    calm, found = (
        [(node.tag, sorted(node.attrib)) for node in tree(one).iter() if node.tag != "br"]
        for one in (render(with_text("calm")), page)
    )
    # A single line break more or less is what an answer's line break becomes.
    assert found == calm
    assert readable(words) in {node.text or "" for node in tree(page).iter("bdi")}


@given(TEXTS)
def test_readable_text_hides_nothing(words: str) -> None:
    shown = readable(words)
    categories = {unicodedata.category(character) for character in shown if character not in "\u200c\u200d"}
    assert not categories & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert bool(shown.strip("\u200c\u200d")) == bool(words)
    assert not (shown and unicodedata.combining(shown[0]))
    assert readable(shown) == shown


def test_ordinary_text_stays_as_it_is() -> None:
    for ordinary in ("dresd@64", "é", "日本語", "مرحبا", "👩\u200d👧", "a < b & c"):
        assert readable(ordinary) == ordinary


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_the_same_record_gives_the_same_bytes(record: Results) -> None:
    assert render(record) == render(Results.from_json(record.to_json()))


def test_every_method_appears_in_tables_and_charts() -> None:
    found = sections(render(BENCHED))
    labels = [one.label for one in METHODS]
    assert first_cells(found["Methods"]) == labels
    assert first_cells(found["Where a step's time goes"]) == labels
    assert first_cells(found["Acceptance by depth"]) == labels[1:]
    assert first_cells(found["Compared"]) == [f"{one.label} ÷ {one.other}" for one in BENCHED.comparisons]
    for title in ("Tokens per forward against nodes", "Speed-up against nodes"):
        assert legend(found[title]) == ["dresd", "rest", "dresd-paper", "plain decoding"]
        # A point for every budget, and one beside the axis for the method that has its own.
        hints = [words(node).split(":")[0] for node in found[title].iter("title")]
        assert hints == ["dresd@8", "dresd@64", "rest@8", "rest@64", "dresd-paper"]
        assert "own budget" in [words(node) for node in found[title].iter("text")]
    assert legend(found["Acceptance by depth"]) == ["dresd@64", "rest@64", "dresd-paper"]
    everything = words(tree(render(BENCHED)))
    command = "dresd-decoder bench --html 'a b.html'"
    for said in ("1,234 entries", "a build", "a processor", "a GPU", "mind the gap", command):
        assert said in everything


def legend(section: ElementTree.Element) -> list[str]:
    return [words(item) for item in section.find("ul[@class='legend']")]


def test_depths_that_few_steps_reached_are_numbers_but_no_points() -> None:
    section = sections(render(replace(BENCHED, methods=METHODS[:2])))["Acceptance by depth"]
    assert [words(node) for node in section.iter("title")] == [
        "rest@8, depth 1: 30 of 40 steps",
        "rest@8, depth 2: 8 of 24 steps",
    ]
    (row,) = section.find(".//tbody")
    assert [words(cell) for cell in row] == ["rest@8", "30/40", "8/24", "0/4"]


@pytest.mark.parametrize(
    ("record", "title", "reason"),
    [
        (REPLAYED, "Speed-up against nodes", "--cost-curve"),
        (REPLAYED, "Cost of a forward pass", "--cost-curve"),
        (REPLAYED, "Where a step's time goes", "nothing was timed"),
        (REPLAYED, "A sample answer, token by token", "no answer was recorded"),
        (REPLAYED, "Compared", "no method of others"),
        (REPLAYED, "Ablations", "no variant"),
        (PLAIN_ALONE, "Tokens per forward against nodes", "no method that drafts"),
        (PLAIN_ALONE, "Acceptance by depth", "no step had a draft"),
        (PLAIN_ALONE, "Speed-up against nodes", "no method that drafts"),
        (PLAIN_ALONE, "Cost of a forward pass", "a benchmark times whole decodes"),
        (NOTHING_RUN, "Methods", "no method was run"),
    ],
)
def test_a_part_without_data_says_why(record: Results, title: str, reason: str) -> None:
    section = sections(render(record))[title]
    assert [node.tag for node in section] == ["h2", "p"]
    assert reason in words(section)


def test_the_table_says_which_columns_it_lacks() -> None:
    section = sections(render(REPLAYED))["Methods"]
    header = [words(cell) for cell in section.find(".//thead/tr")]
    assert not {"speed-up (predicted)", "identical output"} & set(header)
    assert "a replay walks known answers" in words(section)
    assert "--cost-curve" in words(section)


@pytest.mark.parametrize(("gap", "said"), [(1e-6, "1 of 2, 1 near tie"), (0.5, "1 of 2, 1 different")])
def test_an_output_that_differs_shows(gap: float, said: str) -> None:
    first, second = answers(8)
    ours = method("dresd", 8, "dresd@8", [replace(first, difference=Difference(3, gap)), second], TIMED)
    page = render(replace(BENCHED, methods=(METHODS[0], ours)))
    row = sections(page)["Methods"].find(".//tbody")[1]
    assert words(row[-1]) == said
    assert ("must not happen" in words(tree(page))) == ("different" in said)


def test_an_answer_is_laid_out_by_token_and_step() -> None:
    section = sections(render(BENCHED))["A sample answer, token by token"]
    (strip,) = (node for node in section.iter("p") if node.get("class") == "answer")
    steps = [[(token.get("title"), "".join(token.itertext())) for token in step] for step in strip]
    assert steps == [
        [("model, step 0", "def")],
        [
            ("dense, step 1", " f"),
            ("sparse, step 1", "():↵↵␉"),
            ("table, step 1: part of a character, or nothing that shows", "·"),
            ("model, step 1", "return"),
        ],
        [("context, step 2", " <1>"), ("suffix trees, step 2", " &")],
    ]
    styles = [token.get("class") for step in strip for token in step]
    assert len(set(styles)) == 6  # as many as origins
    assert len(list(strip.iter("br"))) == 2
    assert "7 tokens in 3 forward passes" in words(section)


def test_a_step_is_broken_down_without_counting_anything_twice() -> None:
    rows = sections(render(BENCHED))["Where a step's time goes"].find(".//tbody")
    (ours,) = ([words(cell) for cell in row[2:]] for row in rows if words(row[0]) == "dresd@64")
    # Two answers of a second, 21 passes and 60 tokens; 0.1 of the 0.2 seconds of drafting is retrieval.
    assert ours == ["33.3", "4.76", "4.76", "4.76", "47.6", "16.7"]


def test_what_no_method_spent_time_on_is_no_column() -> None:
    stats = replace(TIMED[0].stats, forward_s=0.0, verify_s=0.0)
    plain = replace(METHODS[0], answers=(replace(TIMED[0], stats=stats),))
    section = sections(render(replace(REPLAYED, methods=(plain,))))["Where a step's time goes"]
    header = [words(cell) for cell in section.find(".//thead/tr")]
    assert header == ["method", "shares", "retrieval", "draft", "ms a step", "ms a token"]
    assert legend(section) == ["retrieval", "draft"]
    assert "Without a cost curve" in words(section)


def test_bars_stack_to_their_share_of_the_longest() -> None:
    section = sections(render(BENCHED))["Where a step's time goes"]
    widths = {}
    for row in section.find(".//tbody"):
        parts = [(float(part.get("x")[:-1]), float(part.get("width")[:-1])) for part in row[1][0]]
        for (start, width), (following, _) in pairwise(parts):
            assert start + width == pytest.approx(following, abs=0.01)
        widths[words(row[0])] = sum(parts[-1])
    seconds = {one.label: one.total.total_s / one.total.forwards for one in METHODS}
    assert widths == pytest.approx(
        {label: 100 * one / max(seconds.values()) for label, one in seconds.items()}, abs=0.01
    )


NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))


@given(st.lists(NUMBERS, min_size=1))
def test_an_even_axis_encloses_its_values(values: list[float]) -> None:
    axis = even_axis(values)
    assert all(-1e-6 <= axis.place(value) <= 1 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks) <= 9
    assert list(axis.ticks) == sorted(set(axis.ticks))


@given(st.lists(st.integers(1, 2000), min_size=1))
def test_ticks_keep_their_distance(values: list[int]) -> None:
    for axis in (doubling_axis(values), counting_axis(max(values))):
        places = [axis.place(tick) for tick in axis.ticks]
        assert max(values) in axis.ticks
        assert all(0 <= place <= 1 for place in places)
        assert all(after - before > 0.08 for before, after in pairwise(places))


@given(st.lists(st.tuples(st.integers(0, 1024), st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=8))
def test_nothing_is_drawn_outside_a_chart(points: list[tuple[int, float, float]]) -> None:
    methods = [METHODS[0]]
    for at, (nodes, first, second) in enumerate(points):
        low, high = sorted((first, second))
        interval = replace(METHODS[-1].tokens_per_forward, value=(low + high) / 2, low=low, high=high)
        name = f"method {at % 6}"
        methods.append(replace(METHODS[-1], method=name, nodes=nodes, tokens_per_forward=interval, speedup=interval))
    page = render(replace(BENCHED, methods=tuple(methods)))
    for chart in tree(page).iter("svg"):
        if chart.get("class") == "chart":
            _, _, width, height = map(float, chart.get("viewBox").split())
            for x, y in places(chart):
                assert 0 <= x <= width
                assert 0 <= y <= height


def places(chart: ElementTree.Element) -> Iterator[tuple[float, float]]:
    for node in chart.iter():
        yield from (tuple(map(float, point.split(","))) for point in node.get("points", "").split())
        if "transform" in node.attrib:
            x, y = re.findall(r"[-\d.]+", node.get("transform"))
            yield float(x), float(y)
        if node.get("class") == "whisker":
            x, low, high = map(float, re.match(r"M([\d.]+) ([\d.]+)V([\d.]+)", node.get("d")).groups())
            yield from ((x, low), (x, high))


def luminance(colour: str) -> float:
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_and_lines_stand_out(mode: int) -> None:
    style = files(shared).joinpath("page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): (#\w{6})", re.findall(r":root \{(.*?)\}", style, re.DOTALL)[mode]))
    assert len(colours) == 20
    text_on = [(ink, ground) for ink in ("ink", "soft", "link", "wrong") for ground in ("paper", "panel")]
    text_on += [("ink", ground) for ground in colours if re.fullmatch(r"t\d|own", ground)]
    shapes_on = [(line, "paper") for line in colours if re.fullmatch(r"c\d", line)]
    for pairs, least in ((text_on, 4.5), (shapes_on, 3.0)):
        assert [pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < least] == []
