//! Flags, variables and the file of the replaced plugin.

use clap::{Args, FromArgMatches};

use super::*;

fn described(arguments: &[&str]) -> Result<Value, Error> {
    let command = Flags::augment_args(clap::Command::new("k8s-kms-plugin"));
    let matches = command.try_get_matches_from([&["k8s-kms-plugin"], arguments].concat()).unwrap();
    let flags = Flags::from_arg_matches(&matches).unwrap();
    let flags = flags.flags.with(&|_| None, false).unwrap();
    describe(&file::Given::of(&flags)?)
}

const BASE: [&str; 6] = [
    "serve",
    "--p11-lib=/l.so",
    "--p11-label=kms",
    "--p11-pin-file=/pin",
    "--p11-key-label=etcd",
    "--socket=/s/kms.sock",
];

#[test]
fn a_key_of_flags_is_written_as_the_plugin_did() {
    let expected = json!({
        "id": "1", "type": "pkcs11", "listen": "/s/kms.sock",
        "kek": {"tokenLabel": "kms", "keyLabel": "etcd", "algorithm": "AES-GCM"},
        "settings": {"library": "/l.so", "format": "keysealer"},
        "credentials": {"pinFile": "/pin"},
    });
    assert_eq!(described(&BASE).unwrap(), expected);
}

#[test]
fn what_is_not_known_to_be_readable_there_is_written_in_our_form() {
    for family in ["aes-cbc", "rsa-oaep"] {
        let family = format!("--algorithm-family={family}");
        let key = described(&[&BASE[..], &[&family]].concat()).unwrap();
        assert_eq!(key["settings"]["format"], Value::Null, "{family}");
    }
}

#[test]
fn rotation_gives_an_old_key_that_is_read() {
    let more =
        ["rotation", "--old-p11-key-id=0a", "--old-algorithm-family=rsa-oaep", "--old-p11-slot=7"];
    let key = described(&[&BASE[..], &more].concat()).unwrap();
    let old = json!([{
        "kek": {"slot": 7, "keyId": "0a", "algorithm": "RSA-OAEP-256"},
        "settings": {"library": "/l.so"},
    }]);
    assert_eq!(key["settings"]["olderKeks"], old);
}

#[test]
fn the_file_fills_in_what_flags_leave_open_and_a_pin_in_it_is_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k8s-kms-plugin.conf.yaml");
    let text = "k8s-kms-plugin:\n  serve:\n    p11-lib: /file.so\n    p11-slot: 5\n    p11-pin: hunter2\n    p11-key-id: '05'\n    provider: luna\n";
    std::fs::write(&path, text).unwrap();
    let file = format!("--plugin-config={}", path.display());
    let key = described(&["serve", &file, "--p11-lib=/flag.so", "--socket=/s"]).unwrap();
    assert_eq!(key["settings"]["library"], "/flag.so");
    assert_eq!(key["settings"]["ivFromToken"], true);
    assert_eq!(key["kek"]["slot"], 5);
    assert!(!key.to_string().contains("hunter2"), "{key}");
    let number = usize::try_from(key["credentials"]["given"].as_u64().unwrap()).unwrap();
    assert_eq!(given::given(number).unwrap().as_text(), Some("hunter2"));
}

#[test]
fn ml_kem_is_refused_with_a_way_to_keep_its_data() {
    let error = described(&[&BASE[..], &["--algorithm-family=ml-kem"]].concat()).unwrap_err();
    assert!(error.report().contains("external key"), "{}", error.report());
}

#[test]
fn keys_are_made_by_nobody_here_and_that_is_said_wherever_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k8s-kms-plugin.conf.yaml");
    std::fs::write(&path, "k8s-kms-plugin:\n  serve:\n    auto-create: true\n").unwrap();
    let file = format!("--plugin-config={}", path.display());
    for given in ["--auto-create", "--auto-create=true", &file] {
        let error = described(&[&BASE[..], &[given]].concat()).unwrap_err();
        assert!(error.report().contains("tools of the HSM"), "{given}: {}", error.report());
    }
    described(&[&BASE[..], &["--auto-create=false"]].concat()).unwrap();
}
