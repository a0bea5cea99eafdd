#![allow(clippy::unwrap_used, clippy::expect_used)]

use sidekey_core::config::document;

use super::*;

const CONTRACT: &str = r#"
listen: unix:///path/kms.sock
admin: 127.0.0.1:8093
legacyKey: "1"
adopt:
- {listen: "unix:///path/old-backup.sock", key: "1"}
keys:
- id: "2"
  role: write
  endpoints: ["unix:///path/kms-2.sock"]
- id: "1"
  role: read
  endpoints: ["unix:///path/kms-1.sock"]
"#;

fn paths(text: &str) -> Vec<String> {
    match document(text).and_then(|document| parse(&document, &[])) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(|problem| problem.path.clone()).collect(),
    }
}

#[test]
fn the_contract_is_read_as_it_stands() {
    let config = parse(&document(CONTRACT).unwrap(), &[]).unwrap();
    assert_eq!(config.writer().unwrap().id, KeyNumber(2));
    assert_eq!(config.listeners.len(), 2);
    assert_eq!(config.listeners[1].legacy, Some(KeyNumber(1)));
    assert_eq!(config.probe.coast, Duration::from_secs(60));
}

#[test]
fn what_a_provider_says_of_the_write_key_arrives_in_four_seconds() {
    let second = Duration::from_secs(1);
    let intervals = |probe: &str, external: bool| {
        let key = |id, role| {
            format!("{{id: {id}, role: {role}, endpoints: [/k.sock], external: {external}}}")
        };
        let keys = format!("[{}, {}]", key(2, "write"), key(1, "read"));
        let text = format!("listen: /a.sock\nprobe: {{{probe}}}\nkeys: {keys}");
        let config = parse(&document(&text).unwrap(), &[]).unwrap();
        let intervals: Vec<_> =
            config.keys.iter().map(|key| config.probing(key).interval).collect();
        (intervals[0], intervals[1])
    };
    let (write, read) = intervals("", false);
    assert!(write.mul_f32(1.1) < 4 * second && read == 60 * second);
    assert_eq!(intervals("interval: 1h", false), (write, read));
    assert_eq!(intervals("interval: 1s", false), (second, second));
    // A foreign plugin may pay for Status.
    assert_eq!(intervals("", true), (30 * second, 60 * second));
    assert_eq!(intervals("interval: 5m", true), (300 * second, 300 * second));
}

#[test]
fn a_coast_that_is_too_short_for_the_probes_is_raised_with_a_warning() {
    let text = format!("{CONTRACT}\nprobe: {{timeout: 2s}}\ncoast: 3s");
    let config = parse(&document(&text).unwrap(), &[]).unwrap();
    assert!(config.probe.coast > Duration::from_secs(10), "{:?}", config.probe.coast);
    assert_eq!(config.options.warnings.len(), 1, "{:?}", config.options.warnings);
    assert!(parse(&document(CONTRACT).unwrap(), &[]).unwrap().options.warnings.is_empty());
}

#[test]
fn every_mistake_is_reported_at_once() {
    let text = r#"
legacyKey: 9
adopt: [{listen: tcp://x, key: 8}, {key: 1}]
admin: x
coast: 5
cache: {entries: 0}
keys:
- {id: 1, role: write, endpoints: ["http://plain:1"]}
- {id: 1, role: write, endpoints: []}
- {role: wrong, endpoints: ["https://proxy:8443"], fingerprint: XYZ, more: 1}
"#;
    let mut found = paths(text);
    found.sort();
    found.dedup();
    let expected = [
        "admin",
        "adopt[0].key",
        "adopt[0].listen",
        "adopt[1].listen",
        "cache.entries",
        "cache.ttl",
        "coast",
        "keys",
        "keys[0].endpoints[0]",
        "keys[1].endpoints",
        "keys[1].id",
        "keys[2].fingerprint",
        "keys[2].id",
        "keys[2].more",
        "keys[2].role",
        "keys[2].tls.ca",
        "keys[2].tls.cert",
        "keys[2].tls.key",
        "legacyKey",
        "listen",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_fingerprint_follows_the_kek_and_not_the_order_of_its_fields() {
    let fingerprint = |kek: &str| {
        let text = format!(
            "listen: /a.sock\nkeys: [{{id: 1, role: write, endpoints: [/b.sock], kek: {kek}}}]"
        );
        parse(&document(&text).unwrap(), &[]).unwrap().keys[0].upstream.fingerprint.clone()
    };
    assert_eq!(fingerprint("{a: 1, b: 2}"), fingerprint("{b: 2, a: 1}"));
    assert_ne!(fingerprint("{a: 1}"), fingerprint("{a: 2}"));
    assert_eq!(fingerprint("null"), NO_FINGERPRINT);
}

#[test]
fn openshifts_layout_is_read_as_it_is() {
    let text = r#"
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - kms: {apiVersion: v2, name: 2_secrets, endpoint: "unix:///var/run/kmsplugin/kms-2.sock", timeout: 10s}
  - kms: {apiVersion: v2, name: 1_secrets, endpoint: "unix:///var/run/kmsplugin/kms-1.sock", timeout: 10s}
  - identity: {}
- resources: [configmaps]
  providers:
  - kms: {apiVersion: v2, name: 2_configmaps, endpoint: "unix:///var/run/kmsplugin/kms-2.sock"}
  - kms: {apiVersion: v2, name: 1_configmaps, endpoint: "unix:///var/run/kmsplugin/kms-1.sock"}
"#;
    let mut made = from_encryption_configuration(document(text).unwrap()).unwrap();
    made["listen"] = "/run/kms.sock".into();
    let config = parse(&made, &[]).unwrap();
    assert_eq!(config.writer().unwrap().id, KeyNumber(2));
    assert_eq!(config.keys.len(), 2);
    let disagreeing = text.replacen("2_configmaps", "1_configmaps", 1).replacen(
        "kms-2.sock\"}",
        "kms-1.sock\"}",
        1,
    );
    let refused = from_encryption_configuration(document(&disagreeing).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("resources[1]"), "{refused}");
}

#[test]
fn server_uids_are_numbers_of_users_and_mean_unix_sockets() {
    let of = |rest: &str| format!("{{listen: /a.sock, keys: [{{id: 1, role: write, {rest}}}]}}");
    let config =
        parse(&document(&of("endpoints: [/k.sock], serverUids: [7, 0]")).unwrap(), &[]).unwrap();
    assert_eq!(config.keys[0].upstream.server_uids, [7, 0]);
    let config = parse(&document(&of("endpoints: [/k.sock]")).unwrap(), &[]).unwrap();
    assert!(config.keys[0].upstream.server_uids.is_empty());
    assert_eq!(paths(&of("endpoints: [/k.sock], serverUids: []")), ["keys[0].serverUids"]);
    assert_eq!(paths(&of("endpoints: [/k.sock], serverUids: [root]")), ["keys[0].serverUids[0]"]);
    assert_eq!(paths(&of("endpoints: [/k.sock], serverUids: [-1]")), ["keys[0].serverUids[0]"]);
    let https = "endpoints: ['https://h:1'], serverUids: [7], tls: {ca: /c, cert: /c, key: /k}";
    assert_eq!(paths(&of(https)), ["keys[0].serverUids"]);
}
