//! Every program of ours answers whoever asks it what it is.

use std::process::Command;

use sidekey_e2e::binaries;

#[test]
fn every_binary_tells_its_version_and_its_usage() {
    for name in binaries::products().unwrap() {
        let path = binaries::path(&name).unwrap();
        let version = Command::new(&path).arg("--version").output().unwrap();
        assert_eq!(version.status.code(), Some(0), "{name} --version");
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        assert!(text.contains(env!("CARGO_PKG_VERSION")), "{name} --version says {text}");
        let help = Command::new(&path).arg("--help").output().unwrap();
        assert_eq!(help.status.code(), Some(0), "{name} --help");
        let text = String::from_utf8_lossy(&help.stdout).to_lowercase();
        assert!(text.contains("example"), "{name} --help gives no example:\n{text}");
        let wrong = Command::new(&path).arg("--no-such-flag").output().unwrap();
        assert_eq!(wrong.status.code(), Some(64), "{name} --no-such-flag");
    }
}
