"""Keys by name: all are compared, the name is the tenant, and no key is ever told."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from corekit_openai_http import HttpOptions
from corekit_openai_http.keys import MAX_KEYS, KeyRing, all_keys
from http_live import MODEL, Live, PlainClient, check_error

TEXT = "/v1/completions"
NAMED, UNNAMED = {"alice": "alices-key", "bob": "bobs-key"}, ("first-key", "second-key")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def client() -> PlainClient:
    return PlainClient()


@pytest.fixture(scope="module")
def live(client: PlainClient) -> Iterator[Live]:
    with Live(client, keys=NAMED, api_keys=UNNAMED, admin_key="admins-key", salt_by_tenant=True) as started:
        yield started


def ask(live: Live, key: str, **fields: Any) -> httpx.Response:
    return live.http.post(TEXT, json={"model": MODEL, "prompt": "hi", **fields}, headers=bearer(key))


def test_the_name_of_the_key_is_the_tenant(live: Live, client: PlainClient) -> None:
    client.tenants.clear()
    for key in (*NAMED.values(), *UNNAMED):
        assert ask(live, key, user="somebody").status_code == 200
    assert client.tenants == ["alice", "bob", "key-1", "key-2"]


def test_without_keys_the_tenant_is_the_user(client: PlainClient) -> None:
    client.tenants.clear()
    with Live(client) as live:
        for user in ("somebody", None, "", 7, "u" * 1000):
            assert ask(live, "any", user=user).status_code == 200
    assert client.tenants == ["somebody", "", "", "", "u" * 256]


def test_the_key_is_part_of_every_salt(live: Live, client: PlainClient) -> None:
    client.seen.clear()
    mine = {"cache_salt": "mine"}
    for key, fields in (("alices-key", {}), ("bobs-key", {}), ("alices-key", {}), ("alices-key", mine), ("bobs-key", mine), ("alices-key", mine)):
        assert ask(live, key, **fields).status_code == 200
    alice, bob, again, hers, his, hers_again = [params.cache_salt for _, _, params in client.seen]
    assert alice == again
    assert hers == hers_again
    assert len({alice, bob, hers, his}) == 4
    assert all(salt and len(salt) == 64 for salt in (alice, bob, hers, his))


def test_no_salts_unless_asked_for(client: PlainClient) -> None:
    client.seen.clear()
    with Live(client, keys=NAMED) as live:
        ask(live, "alices-key")
    assert client.seen[0][2].cache_salt is None


@pytest.mark.parametrize("sent", ["Bearer alices-key", "Bearer second-key", "Bearer alices-ke", "Bearer zzz", "Bearer ", "", "Basic alices-key", "alices-key"])
def test_every_key_is_compared_whatever_is_sent(monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    """So that the time says neither how much of a key was right nor whose it is."""
    ring, compare, calls = KeyRing(all_keys(NAMED, UNNAMED)), hmac.compare_digest, []

    def counted(one: bytes, other: bytes) -> bool:
        calls.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    owner = ring.owner(sent.encode())
    assert calls == [(32, 32)] * 4
    assert (owner and owner.name) == {"Bearer alices-key": "alice", "Bearer second-key": "key-2"}.get(sent)


def test_only_bearer_and_only_the_header(live: Live) -> None:
    for headers in ({"authorization": "Basic alices-key"}, {"authorization": "alices-key"}, {"x-api-key": "alices-key"}, {"api-key": "alices-key"}):
        answer = live.http.get("/v1/models", headers=headers)
        assert answer.status_code == 401
        assert check_error(answer)["code"] == "invalid_api_key"
    assert live.http.get("/v1/models?api_key=alices-key").status_code == 401
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert live.http.get("/v1/models", headers={"authorization": f"{scheme} alices-key"}).status_code == 200


def test_no_key_is_told(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    keys = (*NAMED.values(), *UNNAMED, "admins-key")
    with caplog.at_level(logging.DEBUG):
        said = [ask(live, key + wrong, **fields).text for key in keys for wrong in ("", "x") for fields in ({}, {"temperature": 9})]
        said.append(live.http.get("/metrics", headers=bearer("bobs-key")).text)
    options = HttpOptions(keys=NAMED, api_keys=UNNAMED, admin_key="admins-key")
    said += [repr(options), repr(KeyRing(NAMED).owner(b"Bearer alices-key")), *(record.getMessage() + str(record.__dict__) for record in caplog.records)]
    assert not [text for text in said for key in keys if key in text]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keys": {"a b": "k"}}, "names of keys must be 1 to 64 letters"),
        ({"keys": {"": "k"}}, "names of keys must be 1 to 64 letters"),
        ({"keys": {"n" * 65: "k"}}, "names of keys must be 1 to 64 letters"),
        ({"keys": {"a": ""}}, "the key of 'a' in keys must be printable ASCII"),
        ({"keys": {"a": " hunter2"}}, "the key of 'a' in keys must be printable ASCII"),
        ({"keys": {"a": "hunter2", "b": "hunter2"}}, "two names have the same key"),
        ({"keys": {"a": "hunter2"}, "api_keys": ("hunter2",)}, "two names have the same key"),
        ({"keys": {"key-1": "hunter2"}, "api_keys": ("other",)}, "'key-1' in keys is also the name of a key in api_keys"),
        ({"api_keys": tuple(f"hunter2{number}" for number in range(MAX_KEYS + 1))}, f"at most {MAX_KEYS}, got {MAX_KEYS + 1}"),
        ({"keys": {"a": "hunter2"}, "admin_key": "hunter2"}, "admin_key must not be one of keys"),
        ({"keys": {"admin": "hunter2"}, "admin_key": "other"}, "keys must not hold one of the name 'admin' beside admin_key"),
        ({"admin_key": "ü"}, "admin_key must be printable ASCII"),
        ({"salt_by_tenant": True}, "salt_by_tenant needs keys"),
    ],
)
def test_bounds_of_keys(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        HttpOptions(**options)
    assert "hunter2" not in str(caught.value)


def test_no_answer_invites_another_origin(live: Live) -> None:
    """CORS is off: a page of another site cannot read an answer, whatever it asks for."""
    origin = {"origin": "https://elsewhere.example", "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    body = {"model": MODEL, "prompt": "hi"}
    answers = [live.http.options(TEXT, headers=origin), live.http.options("/health", headers=origin), live.http.get("/health", headers=origin)]
    answers += [live.http.options(TEXT, headers=origin | bearer("bobs-key")), live.http.post(TEXT, json=body, headers=origin | bearer("bobs-key"))]
    answers += [live.http.post(TEXT, json=body | {"stream": True}, headers=origin | bearer("bobs-key")), live.http.post(TEXT, json=body, headers=origin)]
    assert [answer.status_code for answer in answers] == [401, 405, 200, 405, 200, 200, 401]
    assert not [name for answer in answers for name in answer.headers if name.startswith("access-control") or name == "vary"]
