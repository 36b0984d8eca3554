"""Config: read from the environment, refused where it is wrong, the same on all ranks where it must be."""

from __future__ import annotations

import dataclasses

import pytest

from r2ccl import Config, InvalidArgument


def test_environment_of_each_kind() -> None:
    config = Config.from_env(
        {
            "R2CCL_RAILS": "eth*,10.0.0.1",
            "R2CCL_SHM": "no",
            "R2CCL_TIMEOUT_S": "2.5",
            "R2CCL_CHUNK_BYTES": "64K",
            "R2CCL_STAGING_BYTES": "4m",
            "R2CCL_SPIN_US": "0",
            "PATH": "/bin",
        }
    )
    assert config == Config(
        rails="eth*,10.0.0.1", shm=False, timeout_s=2.5, chunk_bytes=64 << 10, staging_bytes=4 << 20, spin_us=0
    )


def test_nothing_set_means_the_defaults() -> None:
    assert Config.from_env({}) == Config()


def test_arguments_win() -> None:
    assert Config.from_env({"R2CCL_TIMEOUT_S": "5"}, timeout_s=7.0).timeout_s == 7.0


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_OUTAGE_S", "12")
    assert Config.from_env().outage_s == 12.0


@pytest.mark.parametrize("text", ["1", "true", "YES", "0", "False", "no"])
def test_truth(text: str) -> None:
    assert Config.from_env({"R2CCL_FAILOVER": text}).failover is (text.lower() in ("1", "true", "yes"))


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidArgument, match="R2CCL_TIMOUT_S='5'.*did you mean R2CCL_TIMEOUT_S"):
        Config.from_env({"R2CCL_TIMOUT_S": "5"})
    with pytest.raises(InvalidArgument, match="R2CCL_XYZZY") as caught:
        Config.from_env({"R2CCL_XYZZY": "1"})
    assert "did you mean" not in str(caught.value)
    with pytest.raises(TypeError, match="chunk_size"):
        Config(chunk_size=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SHM", "maybe"),
        ("TIMEOUT_S", "soon"),
        ("CHUNK_BYTES", "64X"),
        ("CHUNK_BYTES", ""),
        ("PORT", "1.5"),
        ("SPIN_US", "K"),
    ],
)
def test_malformed_values_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"R2CCL_{name}={text!r}"):
        Config.from_env({f"R2CCL_{name}": text})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_s", -1.0),
        ("init_timeout_s", -0.1),
        ("outage_s", -1.0),
        ("spin_us", -1),
        ("chunk_bytes", 4095),
        ("eager_bytes", -1),
        ("shm_ring_bytes", 65535),
        ("stall_floor_ms", 0.5),
        ("stall_factor", 0.9),
        ("port", -1),
        ("port", 65536),
        ("metrics_port", 65536),
        ("rdma_service_level", 16),
        ("rdma_traffic_class", 256),
        ("log_level", "loud"),
    ],
)
def test_bounds(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=rf"Config.{name} = {value!r}"):
        Config(**{name: value})  # type: ignore[arg-type]


def test_staging_holds_at_least_two_chunks() -> None:
    assert Config(chunk_bytes=1 << 20, staging_bytes=2 << 20, shm_ring_bytes=3 << 20)
    with pytest.raises(InvalidArgument, match="staging_bytes = 2097151"):
        Config(chunk_bytes=1 << 20, staging_bytes=(2 << 20) - 1, shm_ring_bytes=3 << 20)


def test_the_shared_ring_holds_at_least_two_chunks() -> None:
    """A chunk that may have to skip the end of the ring must fit all the same, or its call would never end."""
    with pytest.raises(InvalidArgument, match="shm_ring_bytes = 524288 .* at least 526336"):
        Config(chunk_bytes=256 << 10, shm_ring_bytes=512 << 10)


def test_frozen_and_copied() -> None:
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.timeout_s = 1.0  # type: ignore[misc]
    assert config.with_(timeout_s=1.0).timeout_s == 1.0
    with pytest.raises(InvalidArgument):
        config.with_(chunk_bytes=1)


def test_agreed_fields_exist_and_leave_out_what_may_differ() -> None:
    agreed = Config().agreed()
    assert set(agreed) <= {f.name for f in dataclasses.fields(Config)}
    assert {"chunk_bytes", "algorithm", "failover"} <= set(agreed)
    assert not {"rails", "timeout_s", "fault_script", "host_id"} & set(agreed)


def test_every_field_is_documented() -> None:
    for field in dataclasses.fields(Config):
        assert field.name in (Config.__doc__ or ""), field.name
