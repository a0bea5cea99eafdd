//! Flags and variables of a replaced plugin, by table, to a key's configuration.
//!
//! Each flag is written once: its name, the variables that stand for it, what it means, and where
//! its value goes in the key's document. Anything else (several keys, values that must be taken
//! apart) reads the values by name.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};
use sidekey_core::{Error, Kind};

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// How its value is called in the help; empty for a switch.
    pub value: &'static str,
    /// What the help says; empty hides it.
    pub help: &'static str,
    /// What becomes of it.
    pub use_: Use,
}

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Its text goes here in the document, as `settings.tls.caFile`.
    Text(&'static str),
    /// The provider reads it by its name.
    Named,
    /// Taken and not needed.
    Ignored,
    /// Refused, if it is true, with what to do.
    Refused(&'static str),
}

/// The table of a plugin.
pub trait Plugin: Send + Sync + 'static {
    /// Its flags.
    const FLAGS: &'static [Flag];
    /// Beginnings of variables that are named after a flag: `VAULT_KMS_` and `TRANSIT_KEY`.
    const PREFIXES: &'static [&'static str] = &[];
    /// Variables that are not named after their flag; they describe a key all the same.
    const VARIABLES: &'static [(&'static str, &'static str)] = &[];
    /// Variables of the vendor's own clients. They fill in, and describe no key by themselves.
    const COMMON: &'static [(&'static str, &'static str)] = &[];
}

/// What was given, by flag. Not shown: there may be secrets among it.
pub struct Flags<P>(BTreeMap<&'static str, Vec<String>>, PhantomData<P>);

impl<P: Plugin> Flags<P> {
    /// The last value of a flag that is not empty: templates write flags that they have no value
    /// for, and Go takes those for not given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).iter().rev().map(String::as_str).find(|value| !value.is_empty())
    }

    /// All values of a flag.
    pub fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(is_true)
    }

    /// The first flag that was given, if there is one.
    pub fn first(&self) -> Option<&'static str> {
        let given = |flag: &&Flag| self.get(flag.name).is_some();
        P::FLAGS.iter().find(given).map(|flag| flag.name)
    }

    /// With variables in the place of missing flags; `None` if nothing describes a key. Variables
    /// alone do not, where a `file` describes the keys.
    pub fn with(&self, variable: &dyn Fn(&str) -> Option<String>, file: bool) -> Option<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut flags = self.clone();
        let mut described = flags.first().is_some();
        if !described && file {
            return None;
        }
        for flag in P::FLAGS {
            if flags.get(flag.name).is_none() {
                let name = flag.name.to_ascii_uppercase().replace('-', "_");
                let plain = P::PREFIXES.iter().find_map(|prefix| set(&format!("{prefix}{name}")));
                if let Some(value) = plain.or_else(|| named(P::VARIABLES, flag.name, &set)) {
                    flags.0.insert(flag.name, vec![value]);
                    described = true;
                }
            }
        }
        for flag in P::FLAGS.iter().filter(|_| described) {
            if flags.get(flag.name).is_none()
                && let Some(value) = named(P::COMMON, flag.name, &set)
            {
                flags.0.insert(flag.name, vec![value]);
            }
        }
        described.then_some(flags)
    }

    /// Writes what the table places into a key's document, and refuses what it refuses.
    pub fn fill(&self, document: &mut Value) -> Result<(), Error> {
        for flag in P::FLAGS {
            let Some(value) = self.get(flag.name) else { continue };
            match flag.use_ {
                Use::Text(path) => place(document, path, value.into()),
                Use::Refused(hint) if is_true(value) => {
                    let what = format!("--{} is not possible here", flag.name);
                    return Err(Error::new(Kind::Invalid, what).with_hint(hint));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Puts a value at a path of names.
pub fn place(document: &mut Value, path: &str, value: Value) {
    let mut at = document;
    for name in path.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[name];
    }
    *at = value;
}

/// Whether a configuration file is named: variables do not count beside one, because those of the
/// vendor's own clients are in many environments.
pub fn names_a_file(arguments: impl Iterator<Item = String>) -> bool {
    arguments.skip(1).any(|argument| {
        let name = argument.split('=').next().unwrap_or_default();
        matches!(name, "--config" | "-config")
    })
}

/// What Go takes for true.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "True" | "TRUE")
}

fn named(
    list: &[(&str, &str)],
    flag: &str,
    set: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    list.iter().filter(|(name, _)| *name == flag).find_map(|(_, variable)| set(variable))
}

impl<P: Plugin> clap::Args for Flags<P> {
    fn augment_args(command: Command) -> Command {
        P::FLAGS.iter().fold(command, |command, flag| {
            let arg = Arg::new(flag.name).long(flag.name).aliases(flag.aliases.iter().copied());
            let arg = arg.action(ArgAction::Append).help(flag.help).hide(flag.help.is_empty());
            let arg = arg.allow_hyphen_values(true);
            let arg = match flag.value {
                "" => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
                value => arg.value_name(value),
            };
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<P: Plugin> clap::FromArgMatches for Flags<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self(BTreeMap::new(), PhantomData);
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for flag in P::FLAGS {
            if let Some(values) = matches.get_many::<String>(flag.name) {
                self.0.insert(flag.name, values.cloned().collect());
            }
        }
        Ok(())
    }
}

impl<P> Clone for Flags<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<P> fmt::Debug for Flags<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests;
