"""The first screen of the HTML page, its help, and its colours in print, in a real browser."""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path

import pytest
from chromium import Page
from ranked import write_ranks
from report_pages import VIEWS, page_data, page_of, violations
from shared_data import shared, unpacked
from sqlite_profile import thread, training
from tables import Rows

from annot.changes.tried import Tried, keep
from annot.read.formats import load
from annot.report.page.render import as_page
from annot.report.totals import totals
from annot.runs.gather import Ranks
from annot.runs.run import Run
from annot.util.program import Program

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
REAL = (
    "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz",
    "kineto/graph_pairs/sglang_decode/execution.json.gz", "kineto/graph_pairs/vllm_decode_full/execution.json.gz",
    "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz", "kineto/hta_cpu_only.json.gz",
)  # fmt: skip
OUTSIDE = """
    [...document.querySelectorAll('h1.verdict, .machine li, svg.parts, .keys li, .best li > *')].filter(one => {
        const box = one.getBoundingClientRect();
        return box.top < 0 || box.left < 0 || box.bottom > innerHeight || box.right > innerWidth || !box.height;
    }).map(one => one.outerHTML.slice(0, 200))
"""


@pytest.mark.parametrize("name", REAL, ids=lambda name: Path(name).parent.name + Path(name).name.partition(".")[0])
def test_the_answer_is_on_the_first_screen(fresh: Page, tmp_path: Path, name: str) -> None:
    """At 1440×900, verdict, devices, bar, legend and the best three pieces of advice need no scrolling."""
    run = Run(unpacked(name, tmp_path) if name.startswith("nsys") else shared(name))
    run.to_html(out := tmp_path / "page.html")
    fresh.open(out, width=1440, height=900)
    assert fresh.text("h1") == run.verdict
    assert fresh.run(OUTSIDE) == []
    rows = run.advice.head(3)
    assert fresh.texts(".best h3") == rows["advice"].to_list()
    widths = fresh.run("[...document.querySelectorAll('.picture > svg.parts g')].map(one => one.getBBox().width)")
    assert sum(widths) == pytest.approx(fresh.run("document.querySelector('svg.parts').clientWidth"), abs=3)
    shares = [float(text.removesuffix("%")) for text in fresh.texts(".keys strong")]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares) + 0.01)


def test_devices_and_software(fresh: Page, tmp_path: Path) -> None:
    """Names and versions of a trace stand below the verdict."""
    run = Run(shared("kineto/graph_pairs/sglang_decode/execution.json.gz"))
    assert load(Path(run.path)).meta["software"] == {"HIP": "7.2.53211", "NCCL": "2.27.7"}
    run.to_html(out := tmp_path / "page.html")
    fresh.open(out)
    assert fresh.texts(".machine li")[:3] == ["AMD Instinct MI300X", "HIP 7.2.53211", "NCCL 2.27.7"]


def test_matrix_units_of_amd(fresh: Page, tmp_path: Path) -> None:
    """The bar, its table, columns and facts of kernels say Matrix Cores; so does the terminal."""
    rows = Rows().range("fc Linear |fwd", 0, 900)
    rows.kernel(10, (20, 860), name="Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1")
    profile = rows.build(devices=[{"name": "AMD Instinct MI300X", "id": 0}])
    data = page_data(profile, "x")
    assert data["runs"][0]["shares"]["tensor_cores"] == ("Matrix Cores", "a kernel runs on Matrix Cores")
    out = tmp_path / "made.html"
    out.write_bytes(as_page(data, "made"))
    for view in VIEWS:
        fresh.open(out, view)
        assert "Tensor Core" not in fresh.text("main"), view
        assert "tensor cores" not in fresh.text("main"), view
    fresh.open(out, "kernels")
    assert "MC" in [one.strip() for one in fresh.texts("thead th")]
    assert dict(totals(Run(profile).view("layer", brief=True)))["Run time"].split(", ")[0].endswith("Matrix Cores")


def test_the_whole_without_warm_up(fresh: Page, tmp_path: Path) -> None:
    """Warm-up ranges are cut out of a profile without steps, and the sentence about 100% says so."""
    rows = Rows().range("Warm-up", 0, 100_000).kernel(10, (20_000, 90_000)).kernel(110_000, (120_000, 180_000))
    for made, words in ((rows, "kernel without warm-up."), (Rows().kernel(10, (20, 860)), "kernel.")):
        fresh.open(page_of(made.build(), tmp_path))
        assert fresh.text(".groups + .hint").endswith(f"the time from the first to the last {words}")


def test_help_has_one_key_per_box(fresh: Page, trained: Path) -> None:
    """Keys are characters or names, without commas."""
    fresh.open(trained)
    fresh.press("?")
    fresh.wait("document.getElementById('help').open")
    assert not [key for key in fresh.texts("#help kbd") if "," in key]


def test_cpu_and_versions(fresh: Page, tmp_path: Path) -> None:
    """A mark's CPU and versions stand there too, each once and escaped; sums over the steps are called sums."""
    profile = training(device=False)
    mark = "Machine PyTorch=2.9.0 annot=0.1.0 CPU=<b>Xeon</b>"
    profile.event(34, 0, None, mark, thread(1), domainId=profile.domain("annot"))
    profile.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_NAME", value="annot")
    profile.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="0.1.0")
    Run(profile.write(tmp_path / "run.sqlite")).to_html(out := tmp_path / "page.html")
    fresh.open(out)
    assert fresh.texts(".machine li")[:3] == ["<b>Xeon</b>", "PyTorch 2.9.0", "annot 0.1.0"]
    assert fresh.texts(".machine li").count("annot 0.1.0") == 1
    text = fresh.text("main")
    assert "Step 2.12 ms on <b>Xeon</b>" in text
    assert "100% is 4.240 ms, the sum of the steps" in text
    assert "Sum of the steps: 4.240 ms" in text


def test_the_verdict_of_the_ranks(fresh: Page, tmp_path: Path) -> None:
    """The view of the ranks begins with the sentence about all of them."""
    ranks = Ranks([str(path) for path in write_ranks(tmp_path, 3)], workers=1)
    ranks.to_html(out := tmp_path / "page.html")
    fresh.open(out, "ranks")
    assert fresh.text("main p strong") == ranks.view().meta["verdict"] != ""


def test_a_profile_without_times_has_a_heading(fresh: Page, tmp_path: Path) -> None:
    """Where nothing is known, the heading is that of the view."""
    fresh.open(page_of(Rows().build(), tmp_path))
    assert fresh.text("h1") == "Summary"
    assert "No advice for this profile" in fresh.text("main")


def test_further_advice_and_code(fresh: Page, tmp_path: Path) -> None:
    """The code of the best advice unfolds, the other advice is below."""
    run = Run(shared("kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz"))
    run.to_html(out := tmp_path / "page.html")
    fresh.open(out, width=1440, height=900)
    assert fresh.run("document.querySelector('.best pre').checkVisibility()") is False
    fresh.click(".best summary")
    assert fresh.text(".best pre") == run.advice["code"][0]
    assert fresh.text(".best .try") == f"Try: {run.advice['trial'][0]}"
    assert run.advice["trial"].null_count() == len(fresh.texts(".best pre")) - len(fresh.texts(".best .try"))
    assert fresh.texts(".advice li > strong") == run.advice["advice"][3:].to_list()


def test_what_was_tried_on_the_program(fresh: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary has the table of what `annot try` measured before on the program; axe-core finds nothing in it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    program = Program.of(["python", "train.py"], str(tmp_path))
    profile = Rows().range("fc Linear |fwd", 0, 900).build(program=program.facts(), cpu="AMD EPYC")
    fresh.open(page_of(profile, tmp_path))
    assert "Tried changes" not in fresh.text("main")
    rows = [
        Tried(change="fp16", outcome="failed", reason="no <b>GPU</b>", device="AMD EPYC"),
        Tried(change="compile", outcome="faster", speedup=1.42, low=1.39, high=1.45, runs=5, device="AMD EPYC"),
    ]
    keep(program, rows)
    fresh.open(page_of(profile, tmp_path), width=1440)
    shown = [row.split("\t") for row in fresh.texts("table[aria-label=Changes] tbody tr")]
    assert shown == [["compile", "1.42", "1.39–1.45", "faster", "5"], ["fp16", "", "", "fails", ""]]
    assert "fp16: no <b>GPU</b>" in fresh.texts("main .notes li")
    assert violations(fresh) == []
    fresh.open(page_of(profile, tmp_path), width=400)
    assert fresh.run("document.documentElement.scrollWidth <= innerWidth")


def test_help_opens_by_key_and_button(fresh: Page, trained: Path) -> None:
    """? opens the help, except while the reader types; Escape and the button close it, and the focus returns."""
    fresh.open(trained, "layers")
    is_open = "document.getElementById('help').open"
    fresh.run("document.getElementById('search').focus()")
    fresh.press("?")
    assert fresh.run(is_open) is False
    fresh.run("document.getElementById('search').blur()")
    fresh.press("?")
    fresh.wait(is_open)
    text = fresh.text("#help")
    for word in (
        "Self time",
        "Phase",
        "Tensor Cores",
        "Attributed",
        "Exposed",
        "Warm-up",
        "waiting for launches",
        "Timeline",
    ):
        assert word in text
    fresh.press("Escape")
    fresh.wait(f"!{is_open}")
    fresh.click("button.help")
    fresh.wait(is_open)
    fresh.click("#help button")
    fresh.wait(f"!{is_open}")
    assert fresh.run("document.activeElement.className") == "help"
    assert fresh.run("document.querySelectorAll('#help dt').length") == fresh.run(
        "document.querySelectorAll('#help dd').length"
    )


def test_bars_print_without_backgrounds(fresh: Page, tmp_path: Path) -> None:
    """The bar of the parts and those of the layers have their colours on paper."""
    Run(shared("kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz")).to_html(out := tmp_path / "page.html")
    fresh.open(out)
    document = base64.b64decode(fresh.send("Page.printToPDF", printBackground=False)["data"])
    painted = set()
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", document, re.DOTALL):
        try:
            painted |= {
                "#" + "".join(f"{round(255 * float(part)):02x}" for part in colour)
                for colour in re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) rg\b", zlib.decompress(stream))
            }
        except zlib.error:
            continue
    read = "name => getComputedStyle(document.documentElement).getPropertyValue(name)"
    for name in ("part-tensor", "part-kernels", "part-collectives", "part-host", "forward", "backward"):
        assert fresh.run(f"({read})('--{name}')") in painted, name


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(fresh: Page, tmp_path: Path, dark: bool) -> None:
    """The first screen and the help have no violation of the rules of axe-core."""
    Run(shared("kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz")).to_html(out := tmp_path / "page.html")
    fresh.open(out, width=1440, height=900, dark=dark)
    assert violations(fresh) == []
    fresh.press("?")
    fresh.wait("document.getElementById('help').open")
    assert violations(fresh) == []
