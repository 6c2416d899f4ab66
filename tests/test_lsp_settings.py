"""Settings: nested or dotted, nulls ignored, each bad value one warning that names its key."""

from pathlib import Path

import pytest

from hiera_lsp.settings import Settings, project_settings, read_settings


def test_nested_and_dotted_keys_mean_the_same() -> None:
    nested, _ = read_settings({"worker": {"interpreter": "/py"}, "budget": {"candidates": 4}})
    dotted, warnings = read_settings({"worker.interpreter": "/py", "budget.candidates": 4, "preset": None})

    assert nested == dotted == Settings(interpreter="/py", budget=4)
    assert warnings == ()


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        ({"preset": "huge"}, "hiera.preset is 'huge': it must be one of 'quick', 'normal', 'deep'; 'normal' is used"),
        ({"budget": {"seconds": -1}}, "hiera.budget.seconds is -1: it must be a whole number, 0 or more; 0 is used"),
        ({"codeLens": {"enable": "yes"}}, "hiera.codeLens.enable is 'yes': it must be true or false; True is used"),
        ({"device": "gpu0"}, "hiera.device is 'gpu0': it must be auto, none or cuda:N; 'auto' is used"),
        ({"budget.candidates": True}, "hiera.budget.candidates is True: it must be a whole number, 0 or more; 0 is used"),
        ([1], "hiera: the settings are list, not an object; defaults are used"),
    ],
)
def test_a_bad_value_is_one_warning_and_the_default(data: object, warning: str) -> None:
    settings, warnings = read_settings(data)

    assert warnings == (warning,)
    assert settings == Settings()


def test_project_files_are_read_and_a_broken_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.hiera]\npreset = 'quick'\n")
    (tmp_path / "hiera.toml").write_text("preset = \n")

    settings, warnings = project_settings(tmp_path)

    assert settings.preset == "quick"
    assert len(warnings) == 1
    assert "hiera.toml" in warnings[0]
