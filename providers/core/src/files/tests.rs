#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

pub(super) fn text<'a>(files: &'a Files, path: &Path) -> &'a str {
    files.secret(path).unwrap().as_text().unwrap()
}

/// A directory as kubelet makes it: `name -> ..data/name`, `..data -> ..<version>`.
pub(super) fn publish(dir: &Path, version: &str, files: &[(&str, &str)]) {
    let real = dir.join(format!("..{version}"));
    fs::create_dir(&real).unwrap();
    for (name, content) in files {
        fs::write(real.join(name), content).unwrap();
        let link = dir.join(name);
        if link.symlink_metadata().is_err() {
            symlink(Path::new("..data").join(name), link).unwrap();
        }
    }
    let old = fs::read_link(dir.join("..data")).ok();
    symlink(format!("..{version}"), dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    if let Some(old) = old {
        fs::remove_dir_all(dir.join(old)).unwrap();
    }
}

#[test]
fn every_unusable_file_is_named_with_its_reason() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let paths = ["missing", "empty", "blank", "large", "dir", "fifo", "good"].map(at);
    fs::write(at("empty"), "").unwrap();
    fs::write(at("blank"), " \n").unwrap();
    fs::write(at("large"), vec![b'x'; MAX_SIZE as usize + 1]).unwrap();
    fs::create_dir(at("dir")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o600.into()).unwrap();
    fs::write(at("good"), "s3cret").unwrap();

    let error = Files::read(paths.iter().map(PathBuf::as_path)).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    let report = error.report();
    for expected in [
        "missing\" does not exist",
        "empty\" is empty",
        "blank\" is empty",
        "large\" is larger than 1 MiB",
        "dir\" is a directory",
        "fifo\" is not a regular file",
        "check the path and the mount",
    ] {
        assert!(report.contains(expected), "{expected:?} is not in {report}");
    }
    assert!(!report.contains("good"), "{report}");
    assert!(!report.contains("s3cret"), "{report}");
}

#[test]
fn files_of_just_the_largest_size_are_read() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("large");
    fs::write(&path, vec![b'x'; MAX_SIZE as usize]).unwrap();
    let files = Files::read([path.as_path()]).unwrap();
    assert_eq!(files.secret(&path).unwrap().expose().len() as u64, MAX_SIZE);
}

#[test]
fn files_that_hide_their_size_are_read_whole() {
    let path = Path::new("/proc/self/mountinfo");
    assert_eq!(fs::metadata(path).unwrap().len(), 0);
    let expected = fs::read(path).unwrap();
    assert_eq!(read_file(path).unwrap().expose(), expected);
}

#[test]
fn undeclared_files_are_an_error_and_contents_are_not_printed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "hunter2").unwrap();
    let files = Files::read([path.as_path()]).unwrap();
    assert_eq!(text(&files, &path), "hunter2");
    assert_eq!(files.secret(Path::new("/other")).unwrap_err().kind(), Kind::Bug);
    let debug = format!("{files:?} {:?}", files.digest());
    assert!(debug.contains("token") && !debug.contains("hunter2"), "{debug}");
}

#[test]
fn digest_depends_on_path_and_content_alone() {
    let dir = TempDir::new().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    let digest = |x: &str, y: &str| {
        fs::write(&a, x).unwrap();
        fs::write(&b, y).unwrap();
        Files::read([a.as_path(), b.as_path()]).unwrap().digest()
    };
    let first = digest("xy", "z");
    assert_eq!(digest("xy", "z"), first);
    assert_ne!(digest("x", "yz"), first);
    assert_ne!(digest("z", "xy"), first);
    assert_eq!(Files::read([b.as_path(), a.as_path()]).unwrap().digest(), digest("z", "xy"));
}

#[test]
fn a_swap_in_the_middle_of_reading_is_read_again() {
    let dir = TempDir::new().unwrap();
    let [cert, key] = ["cert", "key"].map(|name| dir.path().join(name));
    publish(dir.path(), "1", &[("cert", "cert 1"), ("key", "key 1")]);
    let mut swaps = 0;
    let state = ReadState::with(&[&cert, &key], |path| {
        let found = read_file(path);
        if path == cert && swaps < 2 {
            swaps += 1;
            let [cert, key] = ["cert", "key"].map(|name| format!("{name} {}", swaps + 1));
            publish(dir.path(), &format!("{}", swaps + 1), &[("cert", &cert), ("key", &key)]);
        }
        found
    });
    let files = state.result.unwrap();
    assert_eq!((text(&files, &cert), text(&files, &key)), ("cert 3", "key 3"));
}

#[test]
fn a_file_that_never_rests_is_an_error_that_names_it_alone() {
    let dir = TempDir::new().unwrap();
    let [calm, wild] = ["calm", "wild"].map(|name| dir.path().join(name));
    fs::write(&calm, "calm").unwrap();
    fs::write(&wild, "x").unwrap();
    let mut size = 1;
    let state = ReadState::with(&[&calm, &wild], |path| {
        size += 1;
        fs::write(&wild, "x".repeat(size)).unwrap();
        read_file(path)
    });
    let report = state.result.unwrap_err().report();
    assert!(report.contains("wild\" keeps changing") && !report.contains("calm\""), "{report}");
}

proptest! {
    #[test]
    fn no_name_makes_reading_panic(names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..4)) {
        let dir = TempDir::new().unwrap();
        let paths: Vec<PathBuf> = names
            .into_iter()
            .enumerate()
            .map(|(n, name)| if n % 2 == 0 { dir.path().join(OsString::from_vec(name)) } else { OsString::from_vec(name).into() })
            .collect();
        let _ = Files::read(paths.iter().map(PathBuf::as_path));
        let mut subscription = Watcher::new(Duration::from_secs(3600)).subscribe(paths.into_iter().collect());
        let _ = subscription.read();
    }
}
