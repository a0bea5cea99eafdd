//! Keys by KMIP, on a server that OVHcloud's kmip-go makes: whose data is read, what is stored, and in
//! the place of the plugin.

use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_core::{Error, KeyId, Kind, Provider, Sealed};
use sidekey_e2e::Scratch;
use sidekey_e2e::kmip::KmipServer;
use sidekey_e2e::okms::spawn;
use sidekey_e2e::process::Spec;
use sidekey_e2e::sidecar::Sidecar;
use sidekey_okms::Okms;
use tonic::Code;

use crate::support::{LABEL, PLAINTEXT, Served, binary, call, connect, connected, quick};

const KEY: &str = "70001308-5674-43fe-93dd-6270ecac0710";
/// What stands in the README.
const KEY_ID: &str = "okms/5afa285d899035a816798a5de1e3b757/70001308-5674-43fe-93dd-6270ecac0710";
const LABELLED: &str = "okms/8d60d0e5011cd53b8296f00569543b56/70001308-5674-43fe-93dd-6270ecac0710";
const MATERIAL: [u8; 32] = [0x42; 32];
const DEACTIVATED: &str = "Deactivated";
const DESTROYED: &str = "Destroyed";

/// A server with one key whose bytes are known.
struct Stage {
    server: KmipServer,
    scratch: Scratch,
}

impl Stage {
    async fn new(name: &str) -> Self {
        Self::speaking(name, 4).await
    }

    async fn speaking(name: &str, newest: u8) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let server = KmipServer::speaking(&scratch, "kmip", newest).await.unwrap();
        let known = json!({"Name": LABEL, "Value": STANDARD.encode(MATERIAL)});
        server.import(KEY, &known).await.unwrap();
        Self { server, scratch }
    }

    fn endpoint(&self) -> String {
        format!("unix://{}", self.scratch.path().join("kms.sock").display())
    }

    fn document(&self, kek: Value) -> Value {
        let (at, of) = (self.server.address().to_string(), self.server.identities());
        let mut kek = kek;
        kek["protocol"] = "kmip".into();
        json!({
            "id": 1, "type": "okms", "listen": self.endpoint(), "kek": kek,
            "settings": {"address": at, "caFile": of.ca()},
            "credentials": {"certFile": of.client().certificate, "keyFile": of.client().key},
        })
    }

    async fn by_id(&self) -> Okms {
        connect(&self.document(json!({"key": KEY}))).await.unwrap()
    }

    async fn by_label(&self) -> Okms {
        connect(&self.document(json!({"label": LABEL}))).await.unwrap()
    }

    async fn in_plugins_form(&self) -> Okms {
        let mut document = self.document(json!({"key": KEY}));
        document["settings"]["pluginFormat"] = true.into();
        connect(&document).await.unwrap()
    }

    async fn serve(&self, document: &Value) -> Served {
        let sidecar = spawn(Path::new(binary()), self.scratch.path(), document).await.unwrap();
        self.served(sidecar).await
    }

    async fn served(&self, sidecar: Sidecar) -> Served {
        let mut served = connected(sidecar, &self.endpoint()).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    /// The label is given to another key.
    async fn repoint(&self) -> String {
        let new = self.server.create("next", json!({})).await.unwrap();
        self.server.change(KEY, &json!({"Name": "former"})).await.unwrap();
        self.server.change(&new, &json!({"Name": LABEL})).await.unwrap();
        new
    }
}

fn kind<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

/// AES-GCM as the plugin has the server do it: without additional authenticated data.
fn cipher() -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &MATERIAL).unwrap())
}

/// What that plugin stores.
fn written_by_the_plugin(iv: [u8; 12]) -> EncryptResponse {
    let mut data = PLAINTEXT.to_vec();
    let nonce = Nonce::assume_unique_for_key(iv);
    cipher().seal_in_place_append_tag(nonce, Aad::empty(), &mut data).unwrap();
    let annotations = [
        ("iv.okms.ovh.com".to_owned(), iv.to_vec().into()),
        ("alg.okms.ovh.com".to_owned(), Bytes::from_static(b"AES_GCM")),
    ];
    let annotations = annotations.into_iter().collect();
    EncryptResponse { ciphertext: data.into(), key_id: KEY.to_owned(), annotations }
}

/// What that plugin makes of what is stored.
fn read_by_the_plugin(sealed: &EncryptResponse) -> Option<Vec<u8>> {
    assert_eq!(sealed.annotations["alg.okms.ovh.com"], &b"AES_GCM"[..]);
    let iv = sealed.annotations["iv.okms.ovh.com"].to_vec();
    let nonce = Nonce::try_assume_unique_for_key(&iv).unwrap();
    let mut data = sealed.ciphertext.to_vec();
    Some(cipher().open_in_place(nonce, Aad::empty(), &mut data).ok()?.to_vec())
}

#[tokio::test]
async fn the_stored_form_is_as_documented_and_the_key_stays_at_the_server() {
    let stage = Stage::new("kmip-form").await;
    let client = stage.by_id().await;
    let key_id = client.key_id().await.unwrap();
    assert_eq!(key_id.as_str(), KEY_ID);
    assert_eq!(stage.by_label().await.key_id().await.unwrap().as_str(), LABELLED);
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    let mut data = sealed.ciphertext.to_vec();
    assert_eq!(data.len(), PLAINTEXT.len() + 16);
    let iv = Nonce::try_assume_unique_for_key(&sealed.annotations["iv.okms.ovh.com"]).unwrap();
    let scope = KEY_ID.split('/').nth(1).unwrap();
    let opened = cipher().open_in_place(iv, Aad::from(scope.as_bytes()), &mut data).unwrap();
    assert_eq!(opened, PLAINTEXT);
    let again = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_ne!(again.annotations, sealed.annotations, "an IV is never used again");
    let asked = stage.server.calls().await.unwrap();
    let known = ["Decrypt", "Encrypt", "GetAttributes", "Locate"];
    assert!(asked.keys().all(|name| known.contains(&name.as_str())), "{asked:?}");
    let readme = include_str!("../../README.md");
    for part in [KEY_ID, LABELLED, "iv.okms.ovh.com", "alg.okms.ovh.com", "AES_GCM"] {
        assert!(readme.contains(part), "the README lacks {part}");
    }
}

#[tokio::test]
async fn forged_and_altered_data_is_refused_and_nothing_panics() {
    let stage = Stage::new("kmip-forged").await;
    let other = stage.server.create("other", json!({})).await.unwrap();
    let client = stage.by_id().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let asked = stage.server.calls().await.unwrap();
    let with = |name: &str, value: Option<&'static [u8]>| {
        let mut sealed = sealed.clone();
        sealed.annotations.remove(name);
        let value = value.map(|value| (name.to_owned(), Bytes::from_static(value)));
        sealed.annotations.extend(value);
        sealed
    };
    let cut =
        |length: usize| Sealed { ciphertext: sealed.ciphertext.slice(..length), ..sealed.clone() };
    let named = |key_id: &str| Sealed { key_id: KeyId::new(key_id).unwrap(), ..sealed.clone() };
    // The plugin panics where the tag is not whole.
    let corrupt = [
        cut(0),
        cut(1),
        cut(15),
        with("iv.okms.ovh.com", None),
        with("iv.okms.ovh.com", Some(b"short")),
        with("alg.okms.ovh.com", Some(b"AES_CBC")),
    ];
    for sealed in &corrupt {
        assert_eq!(kind(client.decrypt(sealed, &call()).await), Some(Kind::Corrupt), "{sealed:?}");
    }
    for key_id in [KEY_ID.replace(KEY, &other), other.clone(), LABELLED.into(), "1".into()] {
        let refused = client.decrypt(&named(&key_id), &call()).await;
        assert_eq!(kind(refused), Some(Kind::KeyState), "{key_id}");
    }
    assert_eq!(stage.server.calls().await.unwrap(), asked, "none of it was sent");
    let altered =
        [cut(sealed.ciphertext.len() - 1), with("iv.okms.ovh.com", Some(&[7; 12])), named(KEY)];
    for sealed in &altered {
        assert_eq!(kind(client.decrypt(sealed, &call()).await), Some(Kind::Corrupt), "{sealed:?}");
    }
    assert_eq!(
        client.decrypt(&with("alg.okms.ovh.com", None), &call()).await.unwrap().expose(),
        PLAINTEXT
    );
    let error = client.encrypt(&key_id, b"", &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}

#[tokio::test]
async fn a_label_is_followed_and_one_of_no_key_or_of_several_is_none() {
    let stage = Stage::new("kmip-label").await;
    let client = stage.by_label().await;
    let old = client.key_id().await.unwrap();
    let before = client.encrypt_current(&old, PLAINTEXT, &call()).await.unwrap();
    let new = stage.repoint().await;
    assert_eq!(client.encrypt(&old, PLAINTEXT, &call()).await.unwrap().key_id, old);
    let after = client.encrypt_current(&old, PLAINTEXT, &call()).await.unwrap();
    assert!(after.key_id.as_str().ends_with(&new), "{}", after.key_id);
    for sealed in [&before, &after] {
        assert_eq!(client.decrypt(sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    }
    let told = async |count: &str| {
        let error = client.key_id().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
        assert!(error.report().contains(count), "{}", error.report());
    };
    stage.server.change(KEY, &json!({"Name": LABEL})).await.unwrap();
    told("2 active keys").await;
    // One that may only decrypt is not meant.
    stage.server.change(KEY, &json!({"State": DEACTIVATED})).await.unwrap();
    assert_eq!(client.key_id().await.unwrap(), after.key_id);
    stage.server.change(&new, &json!({"Name": "gone"})).await.unwrap();
    told("0 active keys").await;
    assert_eq!(client.decrypt(&before, &call()).await.unwrap().expose(), PLAINTEXT);
}

#[tokio::test]
async fn the_state_of_a_key_and_missing_rights_are_told() {
    let stage = Stage::new("kmip-states").await;
    let client = stage.by_id().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    stage.server.change(KEY, &json!({"State": DEACTIVATED})).await.unwrap();
    assert_eq!(kind(client.key_id().await), Some(Kind::KeyState));
    assert_eq!(kind(client.encrypt(&key_id, PLAINTEXT, &call()).await), Some(Kind::KeyState));
    client.decrypt(&sealed, &call()).await.unwrap();
    stage.server.change(KEY, &json!({"State": DESTROYED})).await.unwrap();
    assert_eq!(kind(client.decrypt(&sealed, &call()).await), Some(Kind::KeyState));
    stage.server.delete(KEY).await.unwrap();
    assert_eq!(kind(client.key_id().await), Some(Kind::KeyState));
    assert_eq!(kind(client.decrypt(&sealed, &call()).await), Some(Kind::KeyState));
    stage.server.deny(true).await.unwrap();
    assert_eq!(kind(client.key_id().await), Some(Kind::Denied));
    assert_eq!(kind(client.decrypt(&sealed, &call()).await), Some(Kind::Denied));
}

#[tokio::test]
async fn before_kmip_1_4_there_is_nothing_to_bind_to_and_the_plugins_form_alone_is_written() {
    for newest in [2, 3] {
        let stage = Stage::speaking("kmip-older", newest).await;
        let client = stage.by_id().await;
        let key_id = client.key_id().await.unwrap();
        let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Config, "{}", error.report());
        let plugin = stage.in_plugins_form().await;
        let sealed =
            plugin.encrypt(&plugin.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
        assert_eq!(plugin.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
        assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    }
}

#[tokio::test]
async fn its_flags_and_data_are_taken_by_kmip_too_and_the_way_back_stays_open() {
    let stage = Stage::new("kmip-dropin").await;
    let stored = written_by_the_plugin(*b"twelve bytes");
    let of = stage.server.identities();
    let serve = async |key: &str| {
        let spec = Spec::new("sidekey-okms", binary(), stage.scratch.path().join("plugin.log"));
        let flags = [
            "-protocol=kmip".to_owned(),
            format!("-serv-addr={}", stage.server.address()),
            format!("--client-cert={}", of.client().certificate.display()),
            format!("--client-key={}", of.client().key.display()),
            format!("--ca={}", of.ca().display()),
            format!("--sock={}", stage.scratch.path().join("kms.sock").display()),
            key.to_owned(),
            "--admin=127.0.0.1:0".to_owned(),
            "--probe-interval=300ms".to_owned(),
        ];
        stage.served(Sidecar::start(spec.env_clear().args(&flags)).await.unwrap()).await
    };
    let served = serve(&format!("--encryption-key-label={LABEL}")).await;
    served.kms.reads(&stored, PLAINTEXT).await.unwrap();
    let ours = served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_eq!(ours.key_id, KEY);
    assert_eq!(read_by_the_plugin(&ours).as_deref(), Some(&PLAINTEXT[..]));
    let new = stage.repoint().await;
    assert_eq!(served.wait_moved(KEY).await, new);
    for sealed in [&stored, &ours] {
        served.kms.reads(sealed, PLAINTEXT).await.unwrap();
    }
    let short = EncryptResponse { ciphertext: Bytes::from_static(b"short"), ..stored.clone() };
    assert_eq!(served.kms.decrypt(&short).await.unwrap_err().code(), Code::DataLoss);
    drop(served);
    let document = quick(&[stage.document(json!({"key": KEY}))]);
    let served = stage.serve(&document).await;
    served.kms.reads(&stored, PLAINTEXT).await.unwrap();
    let bound = served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_eq!(read_by_the_plugin(&bound), None, "the way back has closed");
    drop(served);
    let served = serve(&format!("--encryption-key-id={KEY}")).await;
    served.kms.reads(&bound, PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_server_that_goes_away_is_borne_and_healed_by_itself() {
    let mut stage = Stage::new("kmip-away").await;
    let document = quick(&[stage.document(json!({"label": LABEL}))]);
    let served = stage.serve(&document).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.server.process().kill().unwrap();
    served.kms.status().await.expect("it coasts");
    served.wait_bad(Code::Unavailable, "").await;
    stage.server.revive().await.unwrap();
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
}
