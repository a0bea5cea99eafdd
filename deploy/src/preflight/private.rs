//! A directory for one trial that nobody else can read, and of which nothing is left.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sidekey_core::Secret;
use tempfile::TempDir;

use super::Subject;
use crate::Error;
use crate::model::names;

/// How much of a log is shown.
const LOG_LINES: usize = 20;
/// Shorter contents are no secrets that could be told from other text.
const MIN_SECRET: usize = 6;

/// The directory.
#[derive(Debug)]
pub(super) struct Place {
    directory: TempDir,
    written: Vec<PathBuf>,
}

impl Place {
    /// Makes it, with the files and a configuration that names them there.
    pub(super) fn make(subject: &Subject) -> Result<Self, Error> {
        let failed =
            |error| Error::failed("cannot make a private directory for the trial").because(error);
        let directory = tempfile::Builder::new()
            .prefix("sidekey-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(root())
            .map_err(failed)?;
        let mut place = Self { directory, written: Vec::new() };
        for (name, content) in &subject.files {
            let content = place.aim(content, &subject.files);
            place.write(name, content.expose()).map_err(failed)?;
        }
        let config = place.config(subject).to_string();
        place.write(names::CONFIG_FILE, config.as_bytes()).map_err(failed)?;
        Ok(place)
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.directory.path().join(names::CONFIG_FILE)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("kms.sock")
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn log_file(&self) -> PathBuf {
        self.directory.path().join("provider.log")
    }

    /// The end of the log. Providers log no secrets; should one be there, it is not shown.
    pub(super) fn log_tail(&self, subject: &Subject) -> Vec<String> {
        let text = fs::read(self.log_file()).unwrap_or_default();
        let text = hide(String::from_utf8_lossy(&text).into_owned(), &subject.files);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|l| (*l).to_owned()).collect()
    }

    /// The provider's file: the key as it is given, its files and sockets here.
    fn config(&self, subject: &Subject) -> Value {
        let mut key =
            json!({"id": subject.id, "listen": format!("unix://{}", self.socket().display())});
        let parts = [
            ("kek", &subject.kek),
            ("settings", &subject.settings),
            ("credentials", &subject.credentials),
        ];
        for (name, part) in parts.into_iter().filter(|(_, part)| !part.is_null()) {
            let mut part = part.clone();
            self.turn(&mut part, &subject.files);
            key[name] = part;
        }
        // Tried often: whoever waits here wants to know soon.
        json!({"probe": {"interval": "2s"}, "log": {"format": "text"}, "keys": [key]})
    }

    /// Turns the paths of files in pods to those here.
    fn turn(&self, value: &mut Value, files: &[(String, Secret)]) {
        match value {
            Value::String(text) => {
                let name = text.strip_prefix(names::MOUNT).and_then(|rest| rest.strip_prefix('/'));
                let known = name.filter(|name| files.iter().any(|(file, _)| file == name));
                if let Some(name) = known {
                    *text = self.directory.path().join(name).display().to_string();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.turn(item, files)),
            Value::Object(map) => map.values_mut().for_each(|item| self.turn(item, files)),
            _ => {}
        }
    }

    /// A file may name others: a profile of AWS names the file of its token.
    fn aim(&self, content: &Secret, files: &[(String, Secret)]) -> Secret {
        let Ok(text) = std::str::from_utf8(content.expose()) else { return content.clone() };
        if !text.contains(names::MOUNT) {
            return content.clone();
        }
        let mut text = text.to_owned();
        for (name, _) in files {
            let here = self.directory.path().join(name).display().to_string();
            text = text.replace(&format!("{}/{name}", names::MOUNT), &here);
        }
        Secret::new(text.into_bytes())
    }

    fn write(&mut self, name: &str, content: &[u8]) -> std::io::Result<()> {
        let path = self.directory.path().join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        self.written.push(path);
        file.write_all(content)
    }
}

impl Drop for Place {
    /// Overwritten first: what is unlinked may lie on a disk for long.
    fn drop(&mut self) {
        for path in &self.written {
            let length = fs::metadata(path).map(|file| file.len()).unwrap_or_default();
            if let Ok(mut file) = OpenOptions::new().write(true).open(path) {
                let zeros = vec![0; usize::try_from(length).unwrap_or_default()];
                let _ = file.write_all(&zeros).and_then(|()| file.sync_all());
            }
        }
    }
}

/// Memory rather than a disk, unless somebody says where.
fn root() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match std::env::var_os("TMPDIR") {
        None if memory.is_dir()
            && rustix::fs::access(memory, rustix::fs::Access::WRITE_OK).is_ok() =>
        {
            memory.to_owned()
        }
        _ => std::env::temp_dir(),
    }
}

fn hide(mut text: String, files: &[(String, Secret)]) -> String {
    for (_, content) in files {
        let secret = content.as_text().unwrap_or_default();
        for line in secret.lines().map(str::trim).filter(|line| line.len() >= MIN_SECRET) {
            text = text.replace(line, "(redacted)");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Role;

    fn subject() -> Subject {
        let secret = |text: &str| Secret::new(text.as_bytes().to_vec());
        Subject {
            id: 2,
            vendor: "vault".into(),
            role: Role::Write,
            kek: json!({"key": "kms"}),
            settings: json!({"tls": {"caFile": "/etc/sidekey/ca"}, "other": "/etc/sidekey/unknown"}),
            credentials: json!({"files": ["/etc/sidekey/secret-id"]}),
            files: vec![
                ("ca".into(), secret("a certificate")),
                ("secret-id".into(), secret("hunter2hunter2\n")),
                ("profile".into(), secret("token = /etc/sidekey/secret-id\n")),
            ],
            canary: None,
        }
    }

    #[test]
    fn files_lie_where_the_configuration_says_and_nobody_else_reads_them() {
        let subject = subject();
        let place = Place::make(&subject).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(place.path()), 0o700);
        let text = fs::read_to_string(place.config_file()).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        let key = &config["keys"][0];
        let path = key["credentials"]["files"][0].as_str().unwrap().to_owned();
        assert_eq!(fs::read_to_string(&path).unwrap(), "hunter2hunter2\n");
        assert_eq!(mode(Path::new(&path)), 0o600);
        assert_eq!(key["settings"]["other"], "/etc/sidekey/unknown");
        assert_eq!(key["kek"], subject.kek);
        let profile = fs::read_to_string(place.path().join("profile")).unwrap();
        assert_eq!(profile, format!("token = {path}\n"));
        assert!(!text.contains("hunter2"));
    }

    #[test]
    fn nothing_is_left_and_the_log_shows_no_file() {
        let subject = subject();
        let place = Place::make(&subject).unwrap();
        let directory = place.path().to_owned();
        fs::write(place.log_file(), "one\nrefused hunter2hunter2 by\n").unwrap();
        assert_eq!(place.log_tail(&subject), ["one", "refused (redacted) by"]);
        drop(place);
        assert!(!directory.exists());
    }
}
