#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use sidekey_core::{Call, Error, Files, KeyId, Kind, Provider, Sealed, Secret};

use super::*;

fn config(path: &Path) -> Config {
    let credentials = Some(Credentials { key_file: Some(path.to_owned()) });
    Config { kek: None, credentials }
}

async fn connect(path: &Path, previous: Option<&Local>) -> Result<Local, Error> {
    Local::connect(&config(path), &Files::read([path])?, previous).await
}

/// A file with one version, and a client on it.
async fn fresh() -> (tempfile::TempDir, PathBuf, Local) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    assert!(store::create(&path).unwrap());
    let local = connect(&path, None).await.unwrap();
    (directory, path, local)
}

fn call() -> Call<'static> {
    Call { uid: "test", deadline: tokio_deadline() }
}

fn tokio_deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(5)
}

async fn seal(local: &Local) -> Sealed {
    let key_id = Provider::key_id(local).await.unwrap();
    Provider::encrypt(local, &key_id, b"data encryption key", &call()).await.unwrap()
}

async fn open(local: &Local, sealed: &Sealed) -> Result<Secret, Error> {
    Provider::decrypt(local, sealed, &call()).await
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> Kind {
    result.expect_err("should have failed").kind()
}

#[tokio::test]
async fn every_version_can_be_read_after_rotation() {
    let (_directory, path, first) = fresh().await;
    let old = seal(&first).await;
    store::change(&path, |file| file.rotated()?.activated(2)).unwrap();
    let second = connect(&path, Some(&first)).await.unwrap();
    let new = seal(&second).await;
    assert_ne!(old.key_id, new.key_id);
    for sealed in [&old, &new] {
        assert_eq!(open(&second, sealed).await.unwrap().expose(), b"data encryption key");
    }
    let error = open(&first, &new).await.unwrap_err();
    assert_eq!((error.kind(), error.needs_reload()), (Kind::KeyState, true));
}

#[tokio::test]
async fn rotation_without_activation_writes_with_the_old_version() {
    let (_directory, path, first) = fresh().await;
    store::change(&path, KeyFile::rotated).unwrap();
    let second = connect(&path, Some(&first)).await.unwrap();
    assert_eq!(seal(&first).await.key_id, seal(&second).await.key_id);
}

#[tokio::test]
async fn a_ciphertext_is_bound_to_its_key_id() {
    let (_directory, path, first) = fresh().await;
    store::change(&path, |file| file.rotated()?.activated(2)).unwrap();
    let local = connect(&path, Some(&first)).await.unwrap();
    let mut sealed = seal(&first).await;
    sealed.key_id = Provider::key_id(&local).await.unwrap();
    assert_eq!(kind(open(&local, &sealed).await), Kind::Corrupt);
    let lineage = local.file.lineage();
    for forged in [
        "local",
        "local/",
        "local//1",
        "aws/x/1",
        &format!("local/{lineage}/01"),
        &format!("local/{lineage}/+1"),
        &format!("local/{lineage}/"),
        &format!("local/{lineage}/99999999999"),
        &format!("local/{lineage}/1/2"),
        &format!("local/{}/1", "0".repeat(32)),
    ] {
        sealed.key_id = KeyId::new(forged).unwrap();
        assert_eq!(kind(open(&local, &sealed).await), Kind::KeyState, "{forged}");
    }
}

#[tokio::test]
async fn a_file_that_lost_or_changed_a_version_is_refused() {
    let (directory, path, first) = fresh().await;
    let one = std::fs::read(&path).unwrap();
    store::change(&path, |file| file.rotated()?.activated(2)).unwrap();
    let second = connect(&path, Some(&first)).await.unwrap();
    std::fs::write(&path, &one).unwrap();
    assert_eq!(kind(connect(&path, Some(&second)).await), Kind::KeyState);
    let other = directory.path().join("other");
    store::create(&other).unwrap();
    std::fs::copy(&other, &path).unwrap();
    assert_eq!(kind(connect(&path, Some(&second)).await), Kind::KeyState);
}

#[tokio::test]
async fn the_configured_lineage_must_match() {
    let (_directory, path, local) = fresh().await;
    let mut pinned = config(&path);
    let files = Files::read([path.as_path()]).unwrap();
    pinned.kek = Some(Kek { lineage: Some(local.file.lineage().to_owned()) });
    assert!(Local::connect(&pinned, &files, None).await.is_ok());
    pinned.kek = Some(Kek { lineage: Some("0".repeat(32)) });
    assert_eq!(kind(Local::connect(&pinned, &files, None).await), Kind::KeyState);
}

#[tokio::test]
async fn any_damage_to_the_file_is_an_error_that_names_it() {
    let (_directory, path, _local) = fresh().await;
    let sound = std::fs::read(&path).unwrap();
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x04;
        if let Err(error) = KeyFile::parse(&path, &damaged) {
            assert!(error.report().contains(&path.display().to_string()), "{}", error.report());
        } else {
            let same = serde_json::from_slice::<serde_json::Value>(&damaged).ok()
                == serde_json::from_slice(&sound).ok();
            assert!(same, "damage at byte {at} went unnoticed");
        }
        // The last byte is the newline after the closing brace.
        let cut = KeyFile::parse(&path, &sound[..at]);
        assert!(cut.is_err() || at == sound.len() - 1, "cut at {at}");
    }
}

#[test]
fn creating_never_touches_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    for content in ["", "precious"] {
        std::fs::write(&path, content).unwrap();
        assert!(!store::create(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    assert!(!store::create(&path).unwrap(), "a dangling link may be a volume not yet mounted");
}

#[test]
fn many_creators_make_one_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let made: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| usize::from(store::create(&path).unwrap()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(made, 1);
    assert!(store::read(&path).is_ok());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn concurrent_rotations_lose_no_version() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    store::create(&path).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| store::change(&path, KeyFile::rotated).unwrap());
        }
    });
    assert_eq!(store::read(&path).unwrap().latest(), 9);
}

#[test]
fn a_key_file_is_private_and_keeps_its_mode() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    store::create(&path).unwrap();
    let mode = || path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    store::change(&path, KeyFile::rotated).unwrap();
    assert_eq!(mode(), 0o640);
}

#[test]
fn a_key_with_every_version_it_can_have_is_still_readable() {
    let file = KeyFile::full().unwrap();
    assert_eq!(kind(file.rotated()), Kind::KeyState);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    std::fs::write(&path, file.encode().unwrap().as_slice()).unwrap();
    assert_eq!(store::read(&path).unwrap().latest(), file.latest());
}

#[test]
fn the_write_version_only_moves_forward() {
    let file = KeyFile::create().unwrap().rotated().unwrap().activated(2).unwrap();
    assert_eq!(kind(file.activated(1)), Kind::Invalid);
    assert_eq!(kind(file.activated(3)), Kind::Invalid);
    assert_eq!(file.activated(2).unwrap().active(), 2);
}

#[test]
fn nothing_prints_the_key() {
    let file = KeyFile::create().unwrap();
    let text = String::from_utf8(file.encode().unwrap().to_vec()).unwrap();
    let key = text.split('"').find(|part| part.len() == 44).expect("a key in base64");
    assert!(!format!("{file:?}").contains(key));
    let broken = text.replace("\"active\"", "\"actve\"");
    let error = KeyFile::parse(Path::new("/k"), broken.as_bytes()).unwrap_err();
    assert!(!error.report().contains(key));
}

proptest! {
    #[test]
    fn no_file_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = KeyFile::parse(Path::new("/k"), &bytes);
    }

    #[test]
    fn no_ciphertext_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64), key_id in "(local/)?[0-9a-f/]{1,40}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let file = KeyFile::create().unwrap();
            let keys = file.versions().map(|(v, m)| (v, cipher(m).unwrap())).collect();
            let own = KeyId::new(&format!("local/{}/1", file.lineage())).unwrap();
            let local = Local { file, keys };
            for key_id in [own, KeyId::new(&key_id).unwrap()] {
                let sealed = Sealed { key_id, ciphertext: bytes.clone().into(), annotations: BTreeMap::new() };
                assert!(open(&local, &sealed).await.is_err());
            }
        });
    }
}

/// A key file, and what was wrapped with it.
const OLD_FILE: &str = r#"{"format":"sidekey-local/1","lineage":"000102030405060708090a0b0c0d0e0f","active":1,"versions":[{"version":1,"key":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}],"checksum":"ff89e81bb843e17119ea9292ca67eab3fe6feeeaf3d7c6f1f94cac14e858a847"}"#;
const OLD_DATA: [(&str, &str); 3] = [
    (
        "another implementation of AES-256-GCM",
        "01f0f1f2f3f4f5f6f7f8f9fafb0d6737615c5fbc17ed8e87eee7250c967b842092361a1cf77924a95fe836323b7898b3",
    ),
    (
        "version 0.1.0 of sidekey-local, before the nonce came from the module",
        "013be631dff5a3957e5d70291d84853c444aeb7243e00463e1a375691402c06055388a553e86a9b173a67de4ccb7f72f",
    ),
    (
        "version 0.1.0-fips of it",
        "0110824e2d1df2e5c3b94e50737ae44a8a3a362b5e8c896c31d151a18d90bbe71db72cebe5c643838f3fd1fe36ff2936",
    ),
];

#[tokio::test]
async fn what_was_written_with_the_fips_module_or_without_is_read_by_either_build() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    std::fs::write(&path, OLD_FILE).unwrap();
    let local = connect(&path, None).await.unwrap();
    let mut sealed = seal(&local).await;
    for (writer, hex) in OLD_DATA {
        let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
        let bytes = digits.map(|two| u8::from_str_radix(two, 16).unwrap());
        sealed.ciphertext = bytes.collect::<Vec<u8>>().into();
        let opened = open(&local, &sealed).await;
        assert_eq!(opened.unwrap().expose(), b"data encryption key", "{writer}");
    }
}
