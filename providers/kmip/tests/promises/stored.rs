//! What is stored: its form, and that nothing of it can be changed.

use bytes::Bytes;
use serde_json::json;
use sidekey_core::{KeyId, Kind, Provider, Sealed};

use crate::support::{PLAINTEXT, Stage, by_name, call, fails};

const KEY_ID: &str = "kmip/57b4731799382c97b44fe1640e9fde75/8d1b1e0c";
/// The key 00 01 … 1f of that identifier, in base64.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// As the README has them: GCM, CBC, CTR, made by another program than ours.
const STORED: [&str; 3] = [
    "09101112131415161718191a1b278fab3739bb55dea3066d7922170c25b222637a74ef35d4ca8a8702307763a3921229eacf32004be006d4d5d07cbb08",
    "01101112131415161718191a1b1c1d1e1f397c5d33928754178079162fdfab3491397ace0a691f5db5d76323d486318fdb606162636465666768696a6b62ffba18b04c11ac6f7814a2c5116ec67ed89ef559e0f5470833b922d0337853d8d3722f5bb239b6e389c25d82eaaf05",
    "06101112131415161718191a1b1c1d1e1fa982adc9f67115a1b83dd69d7aaae6c1a99019c9afc192b6eeabca1801766e8c606162636465666768696a6bbf2904c3102d9ee97c21abe1c78d8f0e81ce97b5391ee3d43598bb448a97ae2388c2ef8a08645eed41b6b5510a27573e",
];

fn unhex(text: &str) -> Bytes {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    text.as_bytes().chunks(2).map(digits).collect()
}

#[tokio::test]
async fn what_the_readme_shows_is_read_and_every_changed_byte_is_told() {
    let stage = Stage::new("vectors").await;
    let (state, kind) = ("Active", "SymmetricKey");
    let fields = json!({
        "Name": "kms-old", "State": state, "Type": kind, "Algorithm": "AES",
        "Usage": "Encrypt | Decrypt", "Value": KEY,
    });
    stage.server.import("8d1b1e0c", &fields).await.unwrap();
    let client = stage.connect(by_name()).await;
    let readme = include_str!("../../README.md");
    assert!(readme.contains(KEY_ID));
    for text in STORED {
        assert!(readme.contains(text), "{text} is not in the README");
        let key_id = KeyId::new(KEY_ID).unwrap();
        let sealed = Sealed { key_id, ciphertext: unhex(text), annotations: Default::default() };
        assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
        for place in 0..sealed.ciphertext.len() {
            let mut changed = sealed.ciphertext.to_vec();
            changed[place] ^= 1;
            let changed = Sealed { ciphertext: changed.into(), ..sealed.clone() };
            fails(client.decrypt(&changed, &call()).await, Kind::Corrupt, &[]);
            let cut = sealed.ciphertext.slice(..place);
            let cut = Sealed { ciphertext: cut, ..sealed.clone() };
            fails(client.decrypt(&cut, &call()).await, Kind::Corrupt, &[]);
        }
        let longer = [&sealed.ciphertext[..], &[0]].concat().into();
        let longer = Sealed { ciphertext: longer, ..sealed.clone() };
        fails(client.decrypt(&longer, &call()).await, Kind::Corrupt, &[]);
    }
}

#[tokio::test]
async fn a_server_of_before_kmip_1_4_is_used_in_modes_that_it_has_and_never_without_integrity() {
    for newest in [3, 2] {
        let stage = Stage::speaking(&format!("older-{newest}"), newest).await;
        let client = stage.connect(by_name()).await;
        let key_id = client.key_id().await.unwrap();
        let words = [&*format!("KMIP 1.{newest}"), "block cipher mode"];
        fails(client.encrypt(&key_id, PLAINTEXT, &call()).await, Kind::Config, &words);
        for mode in ["CBC", "CTR"] {
            let client = stage.connect_in(mode).await;
            let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
            assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
            let again = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
            assert_ne!(sealed.ciphertext, again.ciphertext);
        }
    }
}

#[tokio::test]
async fn another_mode_reads_what_the_first_one_wrote() {
    let stage = Stage::new("modes").await;
    let mut clients = Vec::new();
    for mode in ["GCM", "CBC", "CTR"] {
        clients.push(stage.connect_in(mode).await);
    }
    let key_id = clients[0].key_id().await.unwrap();
    for writer in &clients {
        let sealed = writer.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
        assert!(sealed.ciphertext.len() <= 109);
        for reader in &clients {
            assert_eq!(reader.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
        }
    }
}
