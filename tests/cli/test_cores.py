"""The number of cores that a control group allows."""

from pathlib import Path

import pytest

from gateway.cli.workers import quota_cores, worker_count


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {}, None),
        ("", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "350000 100000\n"}, 3.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a/b\n", {"cpu.max": "400000 100000\n", "a/b/cpu.max": "100000 100000\n"}, 1.0),
        ("0::/pod/../..\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "word 100000\n"}, None),
        ("4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "100000"}, 1.5),
        ("4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("3:memory:/a\n0::/\n", {"a/cpu.max": "100000 100000\n"}, None),
    ],
)
def test_the_smallest_quota_counts(tmp_path: Path, groups: str, files: dict[str, str], cores: float | None) -> None:
    """Quotas of the process' group and of those above it are found, in both versions of control groups."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="ascii")
    assert quota_cores(groups, tmp_path) == cores


def test_a_number_is_used_as_it_is() -> None:
    """Only `auto` depends on the machine."""
    assert worker_count(7) == 7
    assert worker_count(None) >= 1
