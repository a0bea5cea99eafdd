#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;

use super::*;

const SMALL: &str = r#"
apiVersion: sidekey.dev/v1alpha1
kind: SecretEncryption
metadata: {name: cluster-a, namespace: clusters-cluster-a, labels: {a: b}}
spec:
  keys:
  - id: 2
    type: vault
    role: write
    kek: {mount: transit, key: kms}
    settings: {addresses: ["https://vault:8200"]}
    credentials: {appRole: {roleIdFile: /etc/sidekey/role-id-2, secretIdFile: /etc/sidekey/secret-id-2}}
    files:
    - {name: secret-id-2, secret: {name: approle, key: secret-id}}
    - {name: role-id-2, configMap: {name: approle, key: role-id}}
  - {id: "1", type: local, role: read, credentials: {keyFile: /etc/sidekey/key}, files: [{name: key, file: ./key}]}
"#;

fn paths(text: &str) -> Vec<String> {
    match SecretEncryption::parse(text) {
        Ok(_) => Vec::new(),
        Err(problems) => {
            let mut paths: Vec<String> = problems.iter().map(|p| p.path.clone()).collect();
            paths.sort();
            paths.dedup();
            paths
        }
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let encryption = SecretEncryption::parse(SMALL).unwrap();
    let spec = &encryption.spec;
    assert_eq!(encryption.namespace.as_deref(), Some("clusters-cluster-a"));
    assert_eq!(spec.resources, ["secrets", "configmaps"]);
    assert_eq!(spec.timeout, "5s");
    assert_eq!(spec.control_plane.container, "kube-apiserver");
    assert_eq!(spec.control_plane.selector["app"], "kube-apiserver");
    assert_eq!(spec.keys[0].listen, "unix:///var/run/sidekey/vault/kms-2.sock");
    assert_eq!(spec.write, Writer::Keys);
    assert_eq!(encryption.writer().unwrap().id, KeyNumber(2));
    assert_eq!(encryption.vendors(), ["local", "vault"]);
    assert_eq!(encryption.sources().len(), 3);
    assert_eq!(encryption.image("vault"), format!("localhost/sidekey-vault:{}", crate::VERSION));
}

#[test]
fn its_own_document_reads_back_as_the_same() {
    let encryption = SecretEncryption::parse(SMALL).unwrap();
    let document = encryption.document();
    assert_eq!(SecretEncryption::from_document(&document).unwrap(), encryption);
    let text = crate::report::yaml(&document).unwrap();
    assert_eq!(SecretEncryption::parse(&text).unwrap(), encryption);
}

#[test]
fn a_fingerprint_is_that_of_the_kek_unless_given() {
    let mut key = SecretEncryption::parse(SMALL).unwrap().spec.keys.remove(0);
    assert_eq!(key.fingerprint(), sidekey_core::fingerprint(&key.kek));
    key.given_fingerprint = Some("abcd".into());
    assert_eq!(key.fingerprint(), "abcd");
}

#[test]
fn every_mistake_is_reported_at_once() {
    let text = r#"
apiVersion: sidekey.dev/v1
kind: Secret
metadata: {name: No_Name}
more: 1
spec:
  unknown: 1
  timeout: 5
  resources: [secrets, "a b"]
  stanzas: [{name: x, resources: [secrets]}, {name: x}]
  images: {nobody: "x y"}
  shim: {keys: [], admin: 127.0.0.1:1, tls: {ca: /etc/sidekey/ca.crt}}
  legacyKey: 9
  adopt: [{name: sidekey, key: 1}, {listen: tcp://x, name: "a:b", key: 8}]
  ciphers: [{name: keys, type: aescbc, secret: {name: x}}]
  write: nobody
  keys:
  - {id: 1, type: Vault, role: write, listen: tcp://x, fingerprint: XY, serverUids: [7], credentials: {keyFile: /etc/sidekey/nope}}
  - {id: 1, type: external, role: write, settings: {}, serverUids: []}
  - {id: 0, role: reader, files: [{name: config.yaml, file: x}, {name: "../x"}], canary: {}, more: 1}
"#;
    let expected = [
        "apiVersion",
        "kind",
        "metadata.name",
        "more",
        "spec.adopt",
        "spec.adopt[0].listen",
        "spec.adopt[0].name",
        "spec.adopt[1].key",
        "spec.adopt[1].listen",
        "spec.adopt[1].name",
        "spec.ciphers[0].name",
        "spec.ciphers[0].secret.key",
        "spec.images.nobody",
        "spec.keys",
        "spec.keys[0].credentials.keyFile",
        "spec.keys[0].fingerprint",
        "spec.keys[0].listen",
        "spec.keys[0].serverUids",
        "spec.keys[0].type",
        "spec.keys[1].endpoints",
        "spec.keys[1].id",
        "spec.keys[1].serverUids",
        "spec.keys[1].settings",
        "spec.keys[2].canary.ciphertext",
        "spec.keys[2].canary.keyId",
        "spec.keys[2].canary.sha256",
        "spec.keys[2].files[0].name",
        "spec.keys[2].files[1]",
        "spec.keys[2].files[1].name",
        "spec.keys[2].id",
        "spec.keys[2].more",
        "spec.keys[2].role",
        "spec.keys[2].type",
        "spec.legacyKey",
        "spec.resources[1]",
        "spec.shim.keys",
        "spec.shim.tls.ca",
        "spec.stanzas[0].resources[0]",
        "spec.stanzas[1].name",
        "spec.stanzas[1].resources",
        "spec.timeout",
        "spec.unknown",
        "spec.write",
    ];
    assert_eq!(paths(text), expected);
}

#[test]
fn resources_are_named_as_kube_apiserver_takes_them() {
    let with = |list: &str| SMALL.replace("  keys:\n", &format!("  resources: {list}\n  keys:\n"));
    for sound in [
        "[secrets, configmaps, deployments.apps]",
        "['*.*']",
        "['*.', '*.apps', widgets.example.com]",
        "[secrets, '*.apps', widgets.example.com]",
    ] {
        assert_eq!(paths(&with(sound)), [""; 0], "{sound}");
    }
    for wrong in [
        "[events, Secrets]",
        "[events, '']",
        "[events, '*']",
        "[events, .apps]",
        "[events, serviceipallocations]",
        "[events, events.events.k8s.io]",
        "[events, '*.events.k8s.io']",
        "[events, '*.extensions']",
        "[events, ingresses.extensions]",
        "[events, 'secrets.*']",
        "[events, 'secret*']",
        "[events, '*.app*']",
        "[events, events]",
        "[events, events.]",
        "[events, '*.']",
        "['*.', secrets]",
        "[events, '*.*']",
        "['*.*', '*.apps']",
        "['*.apps', deployments.apps]",
        "[deployments.apps, '*.apps']",
    ] {
        assert_eq!(paths(&with(wrong)), ["spec.resources[1]"], "{wrong}");
    }
    let two = |first: &str, second: &str| {
        paths(&with(&format!("[{first}]\n  stanzas: [{{name: b, resources: [{second}]}}]")))
    };
    assert_eq!(two("secrets", "'*.*'"), [""; 0], "what is named before a wildcard is not masked");
    for (first, second) in [("'*.'", "secrets"), ("'*.*'", "'*.apps'"), ("secrets", "secrets")] {
        assert_eq!(two(first, second), ["spec.stanzas[0].resources[0]"], "{first} {second}");
    }
}

#[test]
fn what_a_wildcard_covers_is_what_kube_apiserver_reads_with_it() {
    for (name, other, covered) in [
        ("*.*", "secrets", true),
        ("*.*", "*.apps", true),
        ("*.", "secrets", true),
        ("*.", "deployments.apps", false),
        ("*.apps", "deployments.apps", true),
        ("*.apps", "x.apps.example.com", false),
        ("*.apps", "*.*", false),
        ("secrets", "secrets.", true),
        ("secrets", "*.", false),
        ("secrets", "configmaps", false),
    ] {
        assert_eq!(resources::covers(name, other), covered, "{name} {other}");
    }
    assert!(resources::fit("secrets", "secrets") > resources::fit("*.", "secrets"));
    assert!(resources::fit("*.", "secrets") > resources::fit("*.*", "secrets"));
    assert!(resources::fit("*.*", "*.*") > resources::fit("*.apps", "*.*"));
}

#[test]
fn names_of_before_are_not_adopted_into_several_stanzas() {
    let more = "  legacyKey: 1\n  adopt: [{name: old, key: 1}]\n";
    let adopted = SMALL.replace("  keys:\n", &format!("{more}  keys:\n"));
    assert_eq!(paths(&adopted), [""; 0]);
    let both = format!("{more}  stanzas: [{{name: b, resources: [events]}}]\n");
    assert_eq!(paths(&SMALL.replace("  keys:\n", &format!("{both}  keys:\n"))), ["spec.adopt"]);
}

#[test]
fn one_key_writes_and_no_two_share_a_socket_or_a_file_of_other_content() {
    assert_eq!(paths(&SMALL.replace("role: write", "role: read")), ["spec.keys"]);
    let shared = SMALL.replace("type: local, role: read", "type: vault, role: read");
    assert_eq!(paths(&shared), [""; 0]);
    assert_eq!(
        paths(
            &shared
                .replace("name: key, file", "name: role-id-2, file")
                .replace("sidekey/key", "sidekey/role-id-2")
        ),
        ["spec.keys[1].files[0].name"]
    );
    let socket =
        SMALL.replace("type: local,", "type: local, listen: /var/run/sidekey/vault/kms-2.sock,");
    assert_eq!(paths(&socket), ["spec.keys[1].listen"]);
}

#[test]
fn debug_shows_no_credentials() {
    let text =
        SMALL.replace("credentials: {keyFile: /etc/sidekey/key}", "credentials: {token: hunter2}");
    let encryption = SecretEncryption::parse(&text).unwrap();
    assert!(!format!("{encryption:?}").contains("hunter2"));
}

#[test]
fn numbers_of_revisions_are_read_from_names_in_one_form_only() {
    assert_eq!(names::revision_number(&names::revision_secret(12)), Some(12));
    for other in ["sidekey-revision-", "sidekey-revision-01", "sidekey-revision-x", "x"] {
        assert_eq!(names::revision_number(other), None, "{other}");
    }
}

proptest! {
    #[test]
    fn no_document_panics(text in "(?s).{0,200}", at in 0usize..2000, with in "[\\[\\]{}:,a-z0-9\" -]{0,8}") {
        let _ = SecretEncryption::parse(&text);
        let mut broken = SMALL.to_owned();
        let at = at.min(broken.len());
        if broken.is_char_boundary(at) {
            broken.insert_str(at, &with);
        }
        let _ = SecretEncryption::parse(&broken);
    }
}

#[test]
fn a_token_is_hypershifts_where_nothing_else_is_said_and_its_mistakes_are_named() {
    let with = |tokens: &str| SMALL.replace("  keys:\n", &format!("  tokens: {tokens}\n  keys:\n"));
    let encryption = SecretEncryption::parse(&with("[{type: aws}]")).unwrap();
    let token = encryption.token("aws").unwrap();
    assert_eq!(*token, Token::of("aws"));
    assert_eq!(token.directory(), "/var/run/secrets/openshift/serviceaccount");
    let minted = token.minted().unwrap();
    assert_eq!(minted.service_account.to_string(), "kube-system/kms-provider");
    assert_eq!(encryption.token("vault"), None);
    assert_eq!(SecretEncryption::from_document(&encryption.document()).unwrap(), encryption);
    let local = &encryption.spec.control_plane.local_kubeconfig;
    assert_eq!((local.name.as_str(), local.key.as_str()), ("localhost-kubeconfig", "kubeconfig"));
    for (wrong, path) in [
        ("[{}]", "type"),
        ("[{type: aws, mint: 1}]", "mint"),
        ("[{type: aws, file: token}]", "file"),
        ("[{type: aws, file: /token}]", "file"),
        ("[{type: aws, file: /a/../b/token}]", "file"),
        ("[{type: aws, file: /etc/sidekey/token}]", "file"),
        ("[{type: aws, audience: ''}]", "audience"),
        ("[{type: aws, expiry: 5m}]", "expiry"),
        ("[{type: aws, expiry: soon}]", "expiry"),
        ("[{type: aws, serviceAccount: {name: A B}}]", "serviceAccount.name"),
        ("[{type: ibmcloud, podToken: {}}]", "file"),
        ("[{type: ibmcloud, file: /run/t/token, podToken: {expiry: 1m}}]", "podToken.expiry"),
        ("[{type: ibmcloud, file: /run/t/token, podToken: {}, audience: x}]", "audience"),
        ("[{type: azure, secretProviderClass: c}]", "file"),
        ("[{type: azure, file: /mnt/c/x, secretProviderClass: ''}]", "secretProviderClass"),
        ("[{type: azure, file: /mnt/c/x, secretProviderClass: c, podToken: {}}]", "podToken"),
        ("[{type: azure, file: /mnt/c/x, secretProviderClass: c, expiry: 1h}]", "expiry"),
    ] {
        assert_eq!(paths(&with(wrong)), [format!("spec.tokens[0].{path}")], "{wrong}");
    }
    assert_eq!(paths(&with("[{type: aws}, {type: aws}]")), ["spec.tokens[1].type"]);
}

#[test]
fn a_token_may_come_from_kubelet_or_from_a_secrets_store() {
    let tokens = "[{type: ibmcloud, file: /run/t/token, podToken: {}}, {type: azure, file: /mnt/certs/kms, secretProviderClass: managed-azure-kms}]";
    let text = SMALL.replace("  keys:\n", &format!("  tokens: {tokens}\n  keys:\n"));
    let encryption = SecretEncryption::parse(&text).unwrap();
    let pod_token = PodToken { audience: None, expiry: "15m".into() };
    let token = encryption.token("ibmcloud").unwrap();
    assert_eq!((&token.source, token.file_name()), (&TokenSource::Pod { pod_token }, "token"));
    let token = encryption.token("azure").unwrap();
    assert_eq!((token.minted(), token.directory()), (None, "/mnt/certs"));
    assert_eq!(SecretEncryption::from_document(&encryption.document()).unwrap(), encryption);
    // What a status keeps is read back as it was.
    let kept: Vec<Token> = serde_json::from_value(json!(encryption.spec.tokens)).unwrap();
    assert_eq!(kept, encryption.spec.tokens);
}

#[test]
fn a_token_stays_as_long_as_keys_that_nobody_names_any_more_need_it() {
    let of = |spec: Value| {
        let metadata = json!({"name": "a", "namespace": "clusters-a"});
        let document = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec,
        });
        SecretEncryption::from_document(&document).unwrap()
    };
    let key = |id: u64, vendor: &str| json!({"id": id, "type": vendor, "role": "write", "kek": {"key": "k"}});
    let known = [Token::of("aws")];
    let vault = of(json!({"keys": [key(2, "vault")]}));
    let mut told = key(1, "aws");
    told["credentials"] = json!({"roleArn": "r", "webIdentityTokenFile": "/run/x/token"});
    let mut own = key(2, "aws");
    own["credentials"] = json!({"webIdentityTokenFile": "/etc/sidekey/token"});
    own["files"] = json!([{"name": "token", "secret": {"name": "s", "key": "token"}}]);
    own["role"] = "read".into();
    let told = of(json!({"keys": [told, own]}));
    let files: Vec<String> = told_tokens(&told.spec.keys).into_iter().map(|t| t.file).collect();
    assert_eq!(files, ["/run/x/token"]);
    let all = [(1, "aws"), (2, "vault")];
    assert_eq!(kept_tokens(&vault, all, &known).unwrap(), known, "a key of aws is loaded");
    assert_eq!(kept_tokens(&vault, [(2, "vault")], &known).unwrap(), [], "none is any more");
    // Whoever still names the key has meant it; another key of the vendor is another matter.
    let aws = of(json!({"keys": [key(1, "aws")]}));
    assert_eq!(kept_tokens(&aws, [(1, "aws")], &known).unwrap(), []);
    let next = of(json!({"keys": [key(2, "aws")]}));
    assert_eq!(kept_tokens(&next, [(2, "aws"), (1, "aws")], &known).unwrap(), known);
    let own = of(json!({"keys": [key(2, "vault")], "tokens": [{"type": "aws", "audience": "x"}]}));
    assert_eq!(kept_tokens(&own, all, &known).unwrap(), []);
    let moved =
        json!({"keys": [key(2, "aws")], "tokens": [{"type": "aws", "file": "/run/x/token"}]});
    let why = kept_tokens(&of(moved.clone()), [(1, "aws"), (2, "aws")], &known).unwrap_err();
    assert!(why.contains("key 1 of aws") && why.contains("openshift"), "{why}");
    assert_eq!(kept_tokens(&of(moved), [(2, "aws")], &known).unwrap(), [], "nobody needs it");
}
