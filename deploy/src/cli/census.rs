//! `sidekey census`: what is stored under which key.

mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::census::{
    self, Options, Question, Record, Selector, Stanzas, Step, Subject, Verdict, Wanted,
};
use crate::etcd::{self, Etcd};
use crate::{Console, Error, Exit, Progress, snapshot};
use report::{Answer, Counted, Source};

const HELP: &str = "Examples:
  sidekey census --endpoints https://127.0.0.1:2379 \\
      --cacert /etc/kubernetes/pki/etcd/ca.crt --cert client.crt --key client.key
  sidekey census --encryption-config encryption.yaml --write-key 2 --list stale
  sidekey census --list 1                    # which objects are still under key 1?
  sidekey census --may-drop 1 --wait         # may key 1 go?
  sidekey census --snapshot backup.db        # which keys does this backup need?

Nothing is decrypted, and nothing is written to etcd.

A prefix with nothing at all under it makes every answer unknown: it is not kube-apiserver's.

--may-drop: yes takes two counts of zero that are more than three minutes apart, and a compaction
of etcd between them. The first count is kept in a file; the second call goes on from there.

Exit codes: 0 done or yes, 1 failed or unknown, 3 no or not yet, 64 bad usage or configuration.";

/// Count in etcd itself what is stored under which key
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// --etcd-prefix of the API servers; may be given several times [default: all of etcd]
    #[arg(long, value_name = "PATH")]
    prefix: Vec<String>,
    /// Just these, named as in EncryptionConfiguration: secrets, widgets.example.com, *.apps
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    resource: Vec<String>,
    /// Just the resources of this EncryptionConfiguration; says what is stale under it
    #[arg(long, value_name = "FILE", conflicts_with = "resource")]
    encryption_config: Option<PathBuf>,
    /// keyID that the shim writes with: what is under another one is stale
    #[arg(long, value_name = "KEYID", requires = "encryption_config")]
    write_key: Option<u64>,
    /// Name the objects under this: a keyID, a sha256: hash, name:PROVIDER, clear, unknown, stale
    #[arg(long, value_name = "WHAT")]
    list: Option<String>,
    /// Name at most so many
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "list")]
    limit: usize,
    /// Count a snapshot, or the member/snap/db of a stopped etcd, in the place of etcd
    #[arg(long, value_name = "FILE", conflicts_with_all = ["endpoints", "cacert", "cert", "key", "user"])]
    snapshot: Option<PathBuf>,
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    etcd: etcd::Access,
}

/// May it go?
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "May it go?")]
struct QuestionArgs {
    /// Whether this key may go: 0 yes, 3 no or not yet, 1 unknown
    #[arg(long, value_name = "KEYID", conflicts_with_all = ["may_drop_name", "resource", "encryption_config", "list", "snapshot"])]
    may_drop: Option<u64>,
    /// The same for a provider, or a key of EncryptionConfiguration, by its name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["resource", "encryption_config", "list", "snapshot"])]
    may_drop_name: Option<String>,
    /// Provider whose data from before the shim belongs to the key
    #[arg(long, value_name = "NAME", requires = "may_drop")]
    legacy_name: Vec<String>,
    /// Provider whose data from before the shim does not belong to the key
    #[arg(long, value_name = "NAME", requires = "may_drop")]
    other_name: Vec<String>,
    /// Keep the first count here [default: in the user's state directory]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// How old the first count may be
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    max_age: Duration,
    /// Wait for what is missing, and count again
    #[arg(long)]
    wait: bool,
    /// For tests alone: how far apart the counts must be
    #[arg(long, hide = true, value_name = "TIME", value_parser = humantime::parse_duration)]
    apart_for_tests: Option<Duration>,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    if let Some(question) = args.question.question()? {
        let prefixes = prefixes(&args.prefix)?;
        let mut etcd = Etcd::new(&args.etcd)?;
        return super::block_on(ask(&mut etcd, &question, &prefixes, &args.question, console));
    }
    if args.question.wait || args.question.state.is_some() {
        return Err(Error::usage("--wait and --state belong to --may-drop"));
    }
    let stanzas = args.stanzas()?;
    let options = args.options(stanzas.as_ref())?;
    let mut watch = Watch::new(console);
    let (census, source) = match &args.snapshot {
        Some(path) => {
            let (census, integrity) = snapshot::count(path, &options, &mut |step| watch.see(step))?;
            (census, Source::Snapshot(path.clone(), integrity))
        }
        None => {
            let mut etcd = Etcd::new(&args.etcd)?;
            let counted = super::block_on(census::count(&mut etcd, &options, &mut |step| {
                watch.see(step);
            }));
            (counted?, Source::Etcd(etcd.endpoints()))
        }
    };
    watch.finish();
    let counted = Counted::new(census, source, stanzas.as_ref(), options.list.is_some());
    console.answer(&counted)?;
    Ok(counted.exit())
}

/// Asks as often as it takes, or once.
async fn ask(
    etcd: &mut Etcd,
    question: &Question,
    prefixes: &[String],
    args: &QuestionArgs,
    console: &Console,
) -> Result<Exit, Error> {
    // The default place of the first count depends on the cluster.
    etcd.revision().await?;
    let record = match (&args.state, etcd.cluster()) {
        (Some(path), _) => Record::at(path.clone()),
        (None, Some(cluster)) => Record::of(cluster, &question.subject)?,
        (None, None) => return Err(Error::failed("etcd does not say which cluster it is")),
    };
    loop {
        let mut watch = Watch::new(console);
        let see = &mut |step: Step<'_>| watch.see(step);
        let (verdict, census, keep) =
            census::may_drop(etcd, question, prefixes, record.load()?, see).await?;
        watch.finish();
        record.keep(keep.as_ref())?;
        if let Verdict::NotYet { missing, .. } = &verdict
            && args.wait
        {
            let say = &mut |step: Step<'_>| {
                if let Step::Note(text) = step {
                    console.note(text);
                }
            };
            census::await_missing(etcd, missing, say).await?;
            continue;
        }
        let answer = Answer::new(question, &verdict, &census, record.path());
        console.answer(&answer)?;
        return Ok(answer.exit());
    }
}

impl QuestionArgs {
    fn question(&self) -> Result<Option<Question>, Error> {
        let subject = match (self.may_drop, &self.may_drop_name) {
            (Some(key), _) => Subject::Key(key),
            (None, Some(name)) if name == "identity" => {
                return Err(Error::usage("identity has no name in what it stores").hint(
                    "count the encrypted resources with --encryption-config: nothing may be clear",
                ));
            }
            (None, Some(name)) => Subject::Name(name.clone()),
            (None, None) => return Ok(None),
        };
        let mut question = Question::new(subject);
        question.legacy.extend(self.legacy_name.iter().cloned());
        question.others.extend(self.other_name.iter().cloned());
        if let Some(both) = question.legacy.intersection(&question.others).next() {
            return Err(Error::usage(format!(
                "{both} is given both with --legacy-name and with --other-name"
            )));
        }
        question.max_age = self.max_age;
        if let Some(apart) = self.apart_for_tests {
            question.apart = apart;
        }
        Ok(Some(question))
    }
}

impl Args {
    fn stanzas(&self) -> Result<Option<Stanzas>, Error> {
        let Some(path) = &self.encryption_config else { return Ok(None) };
        let stanzas = read(path).and_then(|text| Stanzas::parse(&text)).map_err(|error| {
            Error::usage(format!("cannot use {}", path.display())).because(error)
        })?;
        Ok(Some(stanzas.write_key(self.write_key)))
    }

    fn options(&self, stanzas: Option<&Stanzas>) -> Result<Options, Error> {
        let resources = match stanzas {
            Some(stanzas) => stanzas.resources(),
            None => {
                let parsed = self.resource.iter().map(|name| name.parse::<Selector>());
                parsed.collect::<Result<_, _>>()?
            }
        };
        let list = self.list.as_deref().map(|what| wanted(what, stanzas)).transpose()?;
        Ok(Options { prefixes: prefixes(&self.prefix)?, resources, list, limit: self.limit })
    }
}

fn wanted(what: &str, stanzas: Option<&Stanzas>) -> Result<Wanted, Error> {
    if let Ok(key) = what.parse() {
        return Ok(Wanted::Key(key));
    }
    if let Some(name) = what.strip_prefix("name:") {
        return Ok(Wanted::Name(name.to_owned()));
    }
    match (what, stanzas) {
        ("clear", _) => Ok(Wanted::Clear),
        ("unknown", _) => Ok(Wanted::Unknown),
        ("stale", Some(stanzas)) => Ok(Wanted::Stale(stanzas.clone())),
        ("stale", None) => Err(Error::usage("--list stale needs --encryption-config")),
        (hash, _) if hash.starts_with("sha256:") => Ok(Wanted::Hash(hash.to_owned())),
        _ => Err(Error::usage(format!("nothing can be listed by {what:?}"))
            .hint("give a keyID, a sha256: hash, name:PROVIDER, clear, unknown or stale")),
    }
}

/// kube-apiserver takes a prefix with or without slashes.
fn prefixes(given: &[String]) -> Result<Vec<String>, Error> {
    let tidy = |text: &String| match text.trim_matches('/') {
        "" => Err(Error::usage("--prefix must not be empty").hint("leave it out to count all")),
        inner => Ok(format!("/{inner}")),
    };
    given.iter().map(tidy).collect()
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|error| Error::usage("cannot be read").because(error))
}

/// Progress, as far as it is wanted.
struct Watch {
    progress: Progress,
}

impl Watch {
    fn new(console: &Console) -> Self {
        Self { progress: Progress::new(console, "counting", None) }
    }

    fn see(&mut self, step: Step<'_>) {
        match step {
            Step::Total(total) => self.progress.set_total(total),
            Step::Done(done) => self.progress.set(done),
            Step::Note(text) => self.progress.note(text),
        }
    }

    fn finish(self) {
        self.progress.finish();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_to_be_listed_is_read_from_a_word() {
        assert!(matches!(wanted("12", None), Ok(Wanted::Key(12))));
        assert!(matches!(wanted("name:12", None), Ok(Wanted::Name(name)) if name == "12"));
        assert!(matches!(wanted("sha256:ab", None), Ok(Wanted::Hash(_))));
        assert!(matches!(wanted("clear", None), Ok(Wanted::Clear)));
        for bad in ["stale", "x", ""] {
            assert_eq!(wanted(bad, None).unwrap_err().exit(), Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn prefixes_are_taken_with_and_without_slashes() {
        let tidy = |text: &str| prefixes(&[text.to_owned()]).map(|all| all[0].clone());
        assert_eq!(tidy("registry").unwrap(), "/registry");
        assert_eq!(tidy("/kubernetes.io/").unwrap(), "/kubernetes.io");
        assert!(tidy("/").is_err());
    }
}
