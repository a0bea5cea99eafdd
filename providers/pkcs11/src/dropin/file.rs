//! The replaced plugin's configuration file: YAML or JSON whose sections follow its commands.
//! Flags and variables win over it.

use std::path::Path;

use serde_json::Value;
use sidekey_core::{Error, Kind, read_file};
use sidekey_rest::dropin::{Flags, Plugin, Use};

use super::Replaced;

/// What was given, in whatever way.
pub(crate) struct Given<'a> {
    flags: &'a Flags<Replaced>,
    /// The section of `serve`.
    serve: Value,
}

impl<'a> Given<'a> {
    /// The flags, and the file that they name.
    pub(crate) fn of(flags: &'a Flags<Replaced>) -> Result<Self, Error> {
        let serve = match flags.get("plugin-config") {
            None => Value::Null,
            Some(path) => section(path)?,
        };
        Ok(Self { flags, serve })
    }

    /// Refuses what the table refuses, wherever it was given.
    pub(crate) fn refuse(&self, key: &mut Value) -> Result<(), Error> {
        self.flags.fill(key)?;
        for flag in Replaced::FLAGS {
            if let Use::Refused(hint) = flag.use_
                && self.get(flag.name).as_deref() == Some("true")
            {
                let what = format!("{} is not possible here", flag.name);
                return Err(Error::new(Kind::Invalid, what).with_hint(hint));
            }
        }
        Ok(())
    }

    /// The value of a flag.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        if let Some(value) = self.flags.get(name) {
            return Some(value.to_owned());
        }
        let section = if name.starts_with("old-") { &self.serve["rotation"] } else { &self.serve };
        match &section[name] {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(on) => Some(on.to_string()),
            _ => None,
        }
    }
}

fn section(path: &str) -> Result<Value, Error> {
    let bad = |what: &str| {
        Error::new(Kind::Invalid, format!("the configuration file {path} of k8s-kms-plugin {what}"))
            .with_hint("it is read as YAML or JSON, with the section k8s-kms-plugin.serve")
    };
    let mut document = read_file(Path::new(path))
        .map_err(|problems| bad(&format!("cannot be read: {problems}")))?;
    let serve = document["k8s-kms-plugin"]["serve"].take();
    if serve.is_object() { Ok(serve) } else { Err(bad("describes no key")) }
}
