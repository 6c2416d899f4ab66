"""The screen: what the text alone tells, fast."""

import time

import pytest

from engine.evaluate.screen import MAX_SOURCE_BYTES, flags, mask_comments, screen

GOOD = '#include <torch/extension.h>\n#include "tile.cuh"\n__global__ void k() {}\ntorch::Tensor f(torch::Tensor x);\n'


def test_ordinary_source_passes():
    assert screen(GOOD, entries=["f"]) is None
    assert screen(GOOD.encode(), entries=["f"]) is None
    assert screen('// see ../notes, .incbin\n/* #include "/etc/passwd" */\n' + GOOD) is None


@pytest.mark.parametrize(
    ("text", "word", "line"),
    [
        ('#include "/etc/passwd"\n', "/etc/passwd", 1),
        ("\n#include </etc/passwd>\n", "/etc/passwd", 2),
        ('#include "../../groundtruth.py"\n', "groundtruth", 1),
        ('#include "groundtruth.py"\n', "not a header", 1),
        ('#  include_next   "../x.h"\n', "../x.h", 1),
        ('%:include "/etc/passwd"\n', "/etc/passwd", 1),
        ('#define H "/etc/passwd"\n#include H\n', "computed", 2),
        ('asm(".incbin \\"/etc/passwd\\"");\n', "incbin", 1),
        ("const char d[] = {\n#embed </etc/passwd>\n};\n", "embed", 2),
        ('#include \\\n"/etc/passwd"\n', "/etc/passwd", None),
        ('asm(".inc" "bin \\"x\\"");\n', "incbin", None),
        ('#inclu\\\nde "/etc/passwd"\n', "/etc/passwd", None),
    ],
)
def test_reading_other_files_is_refused(text, word, line):
    failure = screen(text)
    assert failure is not None
    assert failure.stage == "screen"
    assert word in failure.reason
    assert failure.errors[0].line == line


def test_size_encoding_and_missing_entry():
    assert "bytes long" in screen(" " * (MAX_SOURCE_BYTES + 1)).reason
    assert screen(" " * MAX_SOURCE_BYTES) is None
    assert "UTF-8" in screen(b"\xff\xfe").reason
    assert "UTF-8" in screen("\ud800").reason
    assert "NUL" in screen("a\0b").reason
    assert "does not define g" in screen(GOOD, entries=["g"]).reason
    assert screen("// g(\n", entries=["g"]) is not None


def test_flags_are_hints_outside_comments():
    assert flags("static torch::Tensor saved;\nvoid* p = dlsym(h, n);") == ("dlsym", "static state")
    assert flags("// dlsym\n/* fork() */") == ()


def test_comments_are_masked_in_place():
    text = 'a /* x\ny */ "// kept" // gone\nb R"(/* kept */)" \'"\' /* z'
    masked = mask_comments(text)
    assert len(masked) == len(text)
    assert masked.count("\n") == text.count("\n")
    assert "// kept" in masked
    assert "gone" not in masked
    assert "/* kept */" in masked
    assert "z" not in masked


def test_the_largest_source_is_screened_in_milliseconds():
    text = ('  y[i] = x[i] * 2.0f + "text"[0]; // comment\n' * (MAX_SOURCE_BYTES // 45))[:MAX_SOURCE_BYTES]
    started = time.process_time()
    assert screen(text) is None
    # Well below a second on an idle core; what looks at every line anew for every line takes minutes.
    assert time.process_time() - started < 5.0
