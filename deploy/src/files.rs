//! Files that are whole or not there, whatever happens while they are written.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::Error;

/// Puts a file in the place of another: a reader, and a machine that loses power, sees the old
/// one or the new one.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let write = || -> std::io::Result<()> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut file = tempfile::Builder::new().prefix(".").make_in(directory, |path| {
            OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
        })?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        File::open(directory)?.sync_all()
    };
    write()
        .map_err(|error| Error::failed(format!("cannot write {}", path.display())).because(error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_replaced_file_has_the_new_content_and_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        for content in ["one", "two"] {
            replace(&path, content.as_bytes(), 0o600).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_names_the_file() {
        let error = replace(Path::new("/nowhere/state.json"), b"x", 0o600).unwrap_err();
        assert!(error.report().starts_with("cannot write /nowhere/state.json: "));
    }
}
