from __future__ import annotations

from pathlib import Path

import pytest

from bookie.runtime.configuration.settings import ConfigurationError, config_file, resolve_metadata_uri

FLAG = "zk://flag:2181/ledgers"
VARIABLE = "zk://variable:2181/ledgers"
FILE = "zk://file:2181/ledgers"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "named.toml"
    path.write_text(f'metadata_uri = "{FILE}"\n')
    return path


def test_the_flag_beats_the_variable_and_the_file(config: Path) -> None:
    assert resolve_metadata_uri(FLAG, {"BKHEAL_METADATA_URI": VARIABLE}, config) == FLAG


def test_the_variable_beats_the_file(config: Path) -> None:
    assert resolve_metadata_uri(None, {"BKHEAL_METADATA_URI": VARIABLE}, config) == VARIABLE


def test_the_file_is_used_if_nothing_else_is_set(config: Path) -> None:
    assert resolve_metadata_uri(None, {"BKHEAL_METADATA_URI": ""}, config) == FILE


def test_the_option_for_the_file_beats_its_variable(config: Path) -> None:
    assert resolve_metadata_uri(None, {"BKHEAL_CONFIG": "/no/such/file"}, config) == FILE


def test_the_variable_for_the_file_beats_the_default_path(config: Path, tmp_path: Path) -> None:
    default = tmp_path / ".config" / "bkheal" / "config.toml"
    default.parent.mkdir(parents=True)
    default.write_text('metadata_uri = "zk://default:2181/ledgers"\n')
    assert resolve_metadata_uri(None, {"HOME": str(tmp_path)}, None) == "zk://default:2181/ledgers"
    assert resolve_metadata_uri(None, {"HOME": str(tmp_path), "BKHEAL_CONFIG": str(config)}, None) == FILE


def test_the_default_path_is_in_the_configuration_directory_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "bkheal").mkdir()
    (tmp_path / "bkheal" / "config.toml").write_text(f'metadata_uri = " {FILE} "\n')
    assert resolve_metadata_uri(None, {"XDG_CONFIG_HOME": str(tmp_path), "HOME": "/nobody"}, None) == FILE


def test_a_broken_default_file_is_ignored_if_it_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "bkheal").mkdir()
    (tmp_path / "bkheal" / "config.toml").write_text("not toml")
    assert resolve_metadata_uri(FLAG, {"XDG_CONFIG_HOME": str(tmp_path)}, None) == FLAG
    with pytest.raises(ConfigurationError, match="cannot read"):
        resolve_metadata_uri(None, {"XDG_CONFIG_HOME": str(tmp_path)}, None)


def test_a_home_directory_that_cannot_be_searched_has_no_default_file() -> None:
    env = {"HOME": f"/{'h' * 300}"}  # the system returns an error, as it does if the permission to search is missing
    assert config_file(None, env) is None
    with pytest.raises(ConfigurationError, match="no cluster is named"):
        resolve_metadata_uri(None, env, None)


def test_without_any_setting_the_error_names_every_way() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_metadata_uri(None, {"HOME": "/home/me"}, None)
    for way in ("--metadata-uri", "BKHEAL_METADATA_URI", "/home/me/.config/bkheal/config.toml"):
        assert way in str(caught.value)


@pytest.mark.parametrize("environment", [{}, {"BKHEAL_METADATA_URI": VARIABLE}])
def test_a_named_file_that_is_missing_is_refused_even_when_it_is_not_needed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*missing\.toml"):
        resolve_metadata_uri(None, environment, tmp_path / "missing.toml")


def test_every_problem_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("metadata_uri = 7\nmetadata_url = 'zk://h/ledgers'\n[auditor]\n")
    with pytest.raises(ConfigurationError) as caught:
        resolve_metadata_uri("", {}, path)
    assert caught.value.problems == (
        "--metadata-uri is empty; give one such as 'zk://host1:2181;host2:2181/ledgers'",
        (
            f"{path}: unknown metadata_url; outside the tables only metadata_uri is known, and the options of a "
            "command belong below a line such as [auditor]"
        ),
        f'{path}: metadata_uri must be a text such as "zk://host1:2181;host2:2181/ledgers", not 7',
    )


def test_a_file_without_a_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").touch()
    with pytest.raises(ConfigurationError, match=r"no cluster is named.*empty\.toml"):
        resolve_metadata_uri(None, {}, tmp_path / "empty.toml")
