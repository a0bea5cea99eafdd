use std::collections::BTreeMap;

use serde_json::json;

use super::*;

fn shim(name: &str, revision: &str, hash: &str) -> ShimReport {
    let status = ShimStatus {
        revision: Some(revision.to_owned()),
        key_id_hash: Some(hash.to_owned()),
        healthy: true,
        ..Default::default()
    };
    ShimReport { name: name.to_owned(), ending: false, status: Some(status), error: None }
}

fn silent(name: &str) -> ShimReport {
    let error = Some("no answer in 10s".to_owned());
    ShimReport { name: name.to_owned(), ending: false, status: None, error }
}

fn server(name: &str, announced: &[(&str, &str)]) -> ServerReport {
    let announced: BTreeMap<String, Announced> =
        announced.iter().map(|(name, hash)| ((*name).to_owned(), Announced::now(hash))).collect();
    let status = ServerStatus { announced, kms_healthy: Some(true), ..Default::default() };
    ServerReport { name: name.to_owned(), ending: false, status: Some(status), error: None }
}

#[test]
fn a_revision_is_loaded_only_when_every_shim_says_so() {
    let shims = vec![shim("a", "7", "h"), shim("b", "7", "h")];
    let mut seen = Observation { shims, expected: Some(2), ..Default::default() };
    seen.all_loaded(7).unwrap();
    assert_eq!(seen.all_loaded(8).unwrap_err().len(), 2);
    // A pod that is being deleted serves on: it must come along, and stands in for no other.
    seen.shims[1].ending = true;
    assert_eq!(seen.all_loaded(7).unwrap_err(), ["1 replicas of 2 are there"]);
    seen.shims[1].ending = false;
    seen.shims.push(silent("c"));
    assert_eq!(seen.all_loaded(7).unwrap_err(), ["shim c: no answer in 10s"]);
    let nobody = Observation::default();
    assert!(nobody.all_loaded(7).is_err() && nobody.all_announce("h", &["x"]).is_err());
    assert!(nobody.announced().is_err());
}

#[test]
fn who_refuses_a_revision_says_why() {
    let mut refusing = shim("a", "6", "h");
    if let Some(status) = &mut refusing.status {
        let error = "key 2: connection refused".to_owned();
        status.config.refused = Some(Refusal { at: String::new(), error });
    }
    let seen = Observation { shims: vec![refusing], ..Default::default() };
    let missing = seen.all_loaded(7).unwrap_err();
    assert_eq!(missing, ["shim a: is at revision 6: key 2: connection refused"]);
}

#[test]
fn a_key_is_announced_only_when_every_server_writes_under_it_for_every_name() {
    let names = ["sidekey", "sidekey-tokens"];
    let both = [("sidekey", "new"), ("sidekey-tokens", "new")];
    let servers = vec![server("a", &both), server("b", &both)];
    let mut seen = Observation { servers, expected: Some(2), ..Default::default() };
    seen.all_announce("new", &names).unwrap();
    assert!(seen.all_announce("old", &names).is_err());
    seen.servers[1] = server("b", &[("sidekey", "new")]);
    let missing = seen.all_announce("new", &names).unwrap_err();
    assert_eq!(missing, ["kube-apiserver b: has heard of no key_id for sidekey-tokens"]);
    seen.servers[1] = server("b", &both);
    if let Some(status) = &mut seen.servers[1].status {
        status.kms_healthy = Some(false);
    }
    assert!(seen.all_announce("new", &names).unwrap_err()[0].contains("checks"));
    seen.servers.pop();
    assert_eq!(seen.all_announce("new", &names).unwrap_err().len(), 1);
}

#[test]
fn shims_that_disagree_announce_nothing() {
    let shims = vec![shim("a", "7", "h"), shim("b", "7", "h")];
    let mut seen = Observation { shims, ..Default::default() };
    assert_eq!(seen.announced().unwrap(), "h");
    seen.shims.push(shim("c", "7", "other"));
    assert!(seen.announced().unwrap_err()[0].contains("different keys"));
    seen.shims[2] = silent("c");
    assert_eq!(seen.announced().unwrap_err(), ["shim c: no answer in 10s"]);
}

#[test]
fn a_status_is_read_though_it_has_fields_that_are_not_known() {
    let status: ShimStatus = serde_json::from_value(json!({
        "component": "shim", "version": "9.9", "revision": "7", "new": [1],
        "config": {"source": "/etc", "listeners": ["x"], "refused": null},
        "keys": [{"id": "1", "role": "write", "endpoints": ["x"], "healthy": true, "later": {}}],
    }))
    .unwrap();
    assert_eq!(status.revision.as_deref(), Some("7"));
    assert_eq!(status.keys[0].role, "write");
    let status: ProviderStatus =
        serde_json::from_value(json!({"provider": "vault", "keys": [{"id": "2"}]})).unwrap();
    assert_eq!(status.keys[0].id, "2");
}

#[test]
fn addresses_are_read_and_plain_http_stays_on_loopback() {
    let read = |text: &str| Address::parse(text, &Credentials::default());
    for good in ["unix:///run/admin.sock", "http://127.0.0.1:8093", "http://[::1]:8093"] {
        assert_eq!(read(good).unwrap().to_string(), good);
    }
    assert_eq!(
        read("https://kas-0.example:9443").unwrap().to_string(),
        "https://kas-0.example:9443"
    );
    for bad in ["http://10.0.0.1:8093", "ftp://x", "kas-0", "unix://", ""] {
        assert!(read(bad).is_err(), "{bad}");
    }
}
