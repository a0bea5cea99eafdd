#![allow(clippy::unwrap_used, clippy::expect_used)]

use sidekey_core::config::document;

use super::*;
use crate::model::FileSource;

pub(crate) const DOCUMENT: &str = r#"
apiVersion: sidekey.dev/v1alpha1
kind: SecretEncryption
metadata: {name: cluster-a, namespace: clusters-cluster-a}
spec:
  resources: [secrets]
  shim: {coast: 30s}
  legacyKey: 1
  adopt:
  - {name: old, key: 1}
  - {name: older, key: 1, listen: /var/run/kmsplugin/older.sock}
  keys:
  - id: 2
    type: vault
    role: write
    kek: {mount: transit, key: kms}
    credentials: {appRole: {secretIdFile: /etc/sidekey/secret-id-2}}
    files: [{name: secret-id-2, secret: {name: approle, key: secret-id}}]
  - {id: 1, type: local, role: read, credentials: {keyFile: /etc/sidekey/key}, files: [{name: key, file: ./key}]}
"#;

/// Each source's content is its own description.
fn files(encryption: &SecretEncryption) -> ResolvedFiles {
    let mut files = ResolvedFiles::default();
    for source in encryption.sources() {
        files.insert(source.clone(), Secret::new(source.to_string().into_bytes()));
    }
    files
}

fn rendered(text: &str, revision: u64, phase: Phase) -> Rendered {
    let encryption = SecretEncryption::parse(text).unwrap();
    render(&encryption, revision, &files(&encryption), phase).unwrap()
}

/// The same with two stanzas, which nothing can be adopted with.
fn stanzas() -> String {
    let tokens = "stanzas: [{name: tokens, resources: [oauthaccesstokens.oauth.openshift.io]}]";
    let begin = DOCUMENT.find("adopt:").unwrap();
    let end = DOCUMENT.find("keys:").unwrap();
    format!("{}{tokens}\n  {}", &DOCUMENT[..begin], &DOCUMENT[end..])
}

/// What each stanza of kube-apiserver's file reads, the writer first.
fn labels(rendered: &Rendered) -> Vec<Vec<String>> {
    let stanzas = encryption::view(&read(rendered, PartName::KubeApiserver)).unwrap();
    let labels = |stanza: &encryption::StanzaView| -> Vec<String> {
        stanza.providers.iter().flat_map(encryption::Provider::labels).collect()
    };
    stanzas.iter().map(labels).collect()
}

fn read(rendered: &Rendered, part: PartName) -> Value {
    let file = part.main_file();
    let content = &rendered.part(&part).unwrap().files[file];
    document(content.as_text().unwrap()).unwrap()
}

#[test]
fn every_part_of_a_key_is_made_together() {
    let rendered = rendered(DOCUMENT, 7, Phase::Settled);
    let names: Vec<String> = rendered.parts.iter().map(|part| part.name.to_string()).collect();
    assert_eq!(names, ["provider-local", "provider-vault", "shim", "kube-apiserver"]);
    let vault = read(&rendered, PartName::Provider("vault".into()));
    assert_eq!(
        vault,
        json!({
            "revision": 7,
            "adminSocket": "unix:///var/run/sidekey/vault/admin.sock",
            "keys": [{
                "id": 2,
                "type": "vault",
                "role": "write",
                "listen": "unix:///var/run/sidekey/vault/kms-2.sock",
                "kek": {"mount": "transit", "key": "kms"},
                "credentials": {"appRole": {"secretIdFile": "/etc/sidekey/secret-id-2"}},
            }],
        })
    );
    let shim = read(&rendered, PartName::Shim);
    let fingerprint = sidekey_core::fingerprint(&vault["keys"][0]["kek"]);
    assert_eq!(shim["keys"][0]["fingerprint"], fingerprint.as_str());
    assert_eq!(shim["keys"][1]["endpoints"], json!(["unix:///var/run/sidekey/local/kms-1.sock"]));
    assert_eq!((&shim["revision"], &shim["legacyKey"]), (&json!(7), &json!(1)));
    assert_eq!((&shim["coast"], &shim["admin"]), (&json!("30s"), &json!("127.0.0.1:8093")));
    let older = json!([{"listen": "unix:///var/run/kmsplugin/older.sock", "key": 1}]);
    assert_eq!(shim["adopt"], older);
    let secret = &rendered.part(&PartName::Provider("vault".into())).unwrap().files["secret-id-2"];
    assert_eq!(secret.as_text(), Some("Secret approle, key secret-id"));
    let local = rendered.part(&PartName::Provider("local".into())).unwrap();
    assert!(!local.files.contains_key("secret-id-2"), "no vendor sees another's credentials");
}

#[test]
fn providers_are_told_which_keys_only_read() {
    let rendered = rendered(DOCUMENT, 7, Phase::Settled);
    let local = read(&rendered, PartName::Provider("local".into()));
    assert_eq!(local["keys"][0]["role"], "read");
}

#[test]
fn names_of_stored_data_stay_and_identity_is_last_until_it_writes() {
    let names = |text: &str, phase| labels(&rendered(text, 1, phase));
    assert_eq!(names(DOCUMENT, Phase::Settled), [["sidekey", "old", "older", "identity"]]);
    assert_eq!(names(DOCUMENT, Phase::IdentityFirst), [["identity", "sidekey", "old", "older"]]);
    let two = [["sidekey", "identity"], ["sidekey-tokens", "identity"]];
    assert_eq!(names(&stanzas(), Phase::Settled), two);
}

#[test]
fn what_kube_apiserver_would_refuse_is_not_rendered() {
    let sound = SecretEncryption::parse(&stanzas()).unwrap();
    let text = |change: &dyn Fn(&mut SecretEncryption)| {
        let mut encryption = sound.clone();
        change(&mut encryption);
        let error = render(&encryption, 1, &files(&encryption), Phase::Settled).unwrap_err();
        assert_eq!(error.exit(), crate::Exit::Usage);
        error.report()
    };
    let adopted = SecretEncryption::parse(DOCUMENT).unwrap().spec.adopt;
    let twice = text(&|encryption| encryption.spec.adopt.clone_from(&adopted));
    assert!(twice.contains("two KMS providers have the name \"old\""), "{twice}");
    for (list, why) in [
        (["*.*", "secrets"], "is in \"*.*\" already"),
        (["secrets", "*."], "has \"secrets\" in it"),
        (["secrets", "secrets."], "is listed twice"),
        (["secrets", "*"], "write *. for the core group"),
        (["secrets", "*.oauth.openshift.io"], "comes before it"),
    ] {
        let found = text(&|encryption| encryption.spec.resources = list.map(str::to_owned).into());
        assert!(found.contains(why), "{list:?}: {found}");
    }
}

#[test]
fn the_digest_follows_content_and_not_the_revision() {
    let one = rendered(DOCUMENT, 1, Phase::Settled);
    assert_eq!(one.digest, rendered(DOCUMENT, 2, Phase::Settled).digest);
    assert_ne!(one.digest, rendered(DOCUMENT, 1, Phase::IdentityFirst).digest);
    let encryption = SecretEncryption::parse(DOCUMENT).unwrap();
    let mut other = files(&encryption);
    other.insert(FileSource::File("./key".into()), Secret::new(b"another".to_vec()));
    assert_ne!(one.digest, render(&encryption, 1, &other, Phase::Settled).unwrap().digest);
}

#[test]
fn all_that_is_missing_is_named_at_once() {
    let encryption = SecretEncryption::parse(DOCUMENT).unwrap();
    let error = render(&encryption, 1, &ResolvedFiles::default(), Phase::Settled).unwrap_err();
    let text = error.report();
    assert!(text.contains("Secret approle, key secret-id: not found"), "{text}");
    assert!(text.contains("file ./key: not found"), "{text}");
}

#[test]
fn the_revision_holds_everything_and_is_immutable() {
    let rendered = rendered(DOCUMENT, 7, Phase::Settled);
    let object = rendered.revision_object(&Created("now".into()));
    assert_eq!(object["metadata"]["name"], "sidekey-revision-7");
    assert_eq!(object["immutable"], true);
    let names: Vec<&str> = object["data"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "kube-apiserver_encryption.yaml",
            "provider-local_config.yaml",
            "provider-local_key",
            "provider-vault_config.yaml",
            "provider-vault_secret-id-2",
            "revision.json",
            "shim_config.yaml",
        ]
    );
    let text = rendered.history(&Created("now".into()))["revision.json"].clone();
    let summary: Value = serde_json::from_slice(text.expose()).unwrap();
    assert_eq!(summary["keys"][0]["role"], "write");
    assert_eq!(summary["sha256"], rendered.digest.as_str());
}

#[test]
fn ciphers_are_there_to_read_or_to_write() {
    let text = "
apiVersion: sidekey.dev/v1alpha1
kind: SecretEncryption
metadata: {name: a}
spec: {write: old, ciphers: [{name: old, type: aescbc, file: key}]}
";
    let encryption = SecretEncryption::parse(text).unwrap();
    let mut content = ResolvedFiles::default();
    content.insert(FileSource::File("key".into()), Secret::new(vec![1; 32]));
    let rendered = render(&encryption, 1, &content, Phase::Settled).unwrap();
    assert_eq!(rendered.parts.len(), 1, "no keys, no shim");
    let stanzas = encryption::view(&read(&rendered, PartName::KubeApiserver)).unwrap();
    assert_eq!(stanzas[0].providers[0].labels(), ["aescbc/old"]);
    content.insert(FileSource::File("key".into()), Secret::new(vec![1; 44]));
    let error = render(&encryption, 1, &content, Phase::Settled).unwrap_err();
    assert!(error.report().contains("44 bytes"), "{}", error.report());
}

#[test]
fn debug_shows_no_content() {
    let rendered = rendered(DOCUMENT, 1, Phase::Settled);
    assert!(!format!("{rendered:?}").contains("approle"));
}
