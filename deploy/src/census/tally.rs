//! Counts by resource and by what objects are under. Bounded, whatever etcd holds.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;

use super::envelope::{ENCRYPTED, Kind, Under};
use super::resource::{PREFIXES, Resource, Selector};
use super::{Options, Row, Wanted};

/// So many kinds of objects are told apart; a real cluster has some hundreds.
const MAX_ROWS: usize = 4096;
/// Resource of what cannot be told apart.
const LUMP: &str = "(too many to tell apart)";
/// Resource of keys that follow no rule of kube-apiserver.
const STRANGE: &str = "(strange path)";

/// What is counted, and what has been counted.
#[derive(Debug)]
pub(crate) struct Tally {
    prefixes: Vec<Vec<u8>>,
    anywhere: bool,
    selectors: Vec<Selector>,
    list: Option<Wanted>,
    limit: usize,
    rows: HashMap<(String, Under), u64>,
    other: u64,
    /// Prefixes under which there is something, selected or not.
    seen: BTreeSet<usize>,
    /// Something of Kubernetes is there, under whatever prefix.
    found: bool,
    listed: Vec<String>,
    unlisted: u64,
}

/// What a key turned out to be.
enum Place {
    Resource(Resource),
    Strange,
    /// Nothing of Kubernetes, as far as its path says.
    Outside(Option<Resource>),
}

impl Tally {
    pub(crate) fn new(options: &Options) -> Self {
        let given = options.prefixes.iter().map(String::as_str);
        let prefixes: Vec<&str> = match options.prefixes.is_empty() {
            true => PREFIXES.to_vec(),
            false => given.collect(),
        };
        Self {
            prefixes: prefixes.into_iter().map(|prefix| format!("{prefix}/").into()).collect(),
            anywhere: options.prefixes.is_empty(),
            selectors: options.resources.clone(),
            list: options.list.clone(),
            limit: options.limit,
            rows: HashMap::new(),
            other: 0,
            seen: BTreeSet::new(),
            found: false,
            listed: Vec::new(),
            unlisted: 0,
        }
    }

    /// Counts one object.
    pub(crate) fn count(&mut self, key: &[u8], value: &Bytes) {
        let (resource, under) = match self.place(key) {
            Place::Resource(resource) => (Some(resource), Under::of(value)),
            Place::Strange => (None, Under::of(value)),
            // Others may keep what they like in etcd, but what is encrypted is kube-apiserver's.
            Place::Outside(resource) if self.anywhere && value.starts_with(ENCRYPTED) => {
                (resource, Under::of(value))
            }
            Place::Outside(_) => {
                self.other += 1;
                return;
            }
        };
        self.found = true;
        let selected = self.selectors.is_empty()
            || resource.as_ref().is_some_and(|r| self.selectors.iter().any(|s| s.selects(r)));
        if !selected {
            return;
        }
        let name = resource.map_or_else(|| STRANGE.to_owned(), |resource| resource.to_string());
        if self.list.as_ref().is_some_and(|wanted| wanted.is(&name, &under)) {
            match self.listed.len() < self.limit {
                true => self.listed.push(String::from_utf8_lossy(key).into_owned()),
                false => self.unlisted += 1,
            }
        }
        self.add(name, under);
    }

    /// Prefixes under which nothing was found, if that is of any matter.
    pub(super) fn blank(&self) -> Vec<String> {
        if self.anywhere && self.found {
            return Vec::new();
        }
        let unseen = (0..self.prefixes.len()).filter(|index| !self.seen.contains(index));
        let text = |index: usize| String::from_utf8_lossy(&self.prefixes[index]).into_owned();
        unseen.map(|index| text(index).trim_end_matches('/').to_owned()).collect()
    }

    /// Notes that an object has this key, which is not counted.
    pub(super) fn see(&mut self, key: &[u8]) {
        self.found |= !matches!(self.place(key), Place::Outside(_));
    }

    /// The counts, in order.
    pub(crate) fn rows(self) -> Counts {
        let blank = self.blank();
        let mut rows: Vec<Row> = self
            .rows
            .into_iter()
            .map(|((resource, under), objects)| Row { resource, under, objects })
            .collect();
        rows.sort_by(|a, b| (&a.resource, &a.under).cmp(&(&b.resource, &b.under)));
        let Self { other, listed, unlisted, .. } = self;
        Counts { rows, other, blank, listed, unlisted }
    }

    fn add(&mut self, resource: String, under: Under) {
        let slot = (resource, under);
        if let Some(count) = self.rows.get_mut(&slot) {
            *count += 1;
        } else if self.rows.len() < MAX_ROWS {
            self.rows.insert(slot, 1);
        } else {
            let lump = (LUMP.to_owned(), Under::unknown("too many different keys to tell apart"));
            *self.rows.entry(lump).or_default() += 1;
        }
    }

    fn place(&mut self, key: &[u8]) -> Place {
        let mut prefixes = self.prefixes.iter().enumerate();
        let below = prefixes
            .find_map(|(index, prefix)| Some((index, key.strip_prefix(prefix.as_slice())?)));
        if let Some((index, path)) = below {
            self.seen.insert(index);
            return Resource::of_path(path).map_or(Place::Strange, Place::Resource);
        }
        // `--etcd-prefix` may be anything: take its first part for it.
        let path = key.strip_prefix(b"/").unwrap_or(key);
        let rest = path.iter().position(|byte| *byte == b'/').map(|at| &path[at + 1..]);
        Place::Outside(rest.and_then(Resource::of_path))
    }
}

/// A finished tally.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) rows: Vec<Row>,
    pub(crate) other: u64,
    pub(crate) blank: Vec<String>,
    pub(crate) listed: Vec<String>,
    pub(crate) unlisted: u64,
}

impl Wanted {
    /// Whether an object is what is looked for.
    pub(super) fn is(&self, resource: &str, under: &Under) -> bool {
        match self {
            Self::Key(key) => under.key == Some(*key),
            Self::Name(name) => under.provider.as_deref() == Some(name),
            Self::Hash(hash) => under.key_id_hash.as_deref() == Some(hash),
            Self::Clear => under.kind == Kind::Clear,
            Self::Unknown => under.kind == Kind::Unknown,
            Self::Stale(stanzas) => stanzas.is_stale(resource, under) == Some(true),
            Self::Needing(question) => question.needs(under) == Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAR: &[u8] = b"k8s\0x";
    const CBC: &[u8] = b"k8s:enc:aescbc:v1:k:x";

    fn tally(options: &Options, entries: &[(&str, &'static [u8])]) -> Counts {
        let mut tally = Tally::new(options);
        for (key, value) in entries {
            tally.count(key.as_bytes(), &Bytes::from_static(value));
        }
        tally.rows()
    }

    fn shown(counts: &Counts) -> Vec<String> {
        let show =
            |row: &Row| format!("{} {} {}", row.resource, row.under.kind.label(), row.objects);
        counts.rows.iter().map(show).collect()
    }

    #[test]
    fn everything_of_kubernetes_is_counted_wherever_it_is() {
        let entries = [
            ("/registry/secrets/a/b", CBC),
            ("/registry/secrets/a/c", CLEAR),
            ("/kubernetes.io/secrets/a/c", CLEAR),
            ("/registry/example.com/widgets/a/b", CLEAR),
            ("/my-own/prefixed/secrets/a/b", CBC),
            ("/my-own/secrets/a/b", CBC),
            ("compact_rev_key", b"17"),
            ("/calico/x/y", b"{}"),
            ("/registry/", CBC),
        ];
        let counts = tally(&Options::default(), &entries);
        assert_eq!(
            shown(&counts),
            [
                "(strange path) aescbc 1",
                "prefixed aescbc 1",
                "secrets aescbc 2",
                "secrets clear 2",
                "widgets.example.com clear 1",
            ]
        );
        assert_eq!(counts.other, 2, "what is not of Kubernetes");
    }

    #[test]
    fn resources_and_prefixes_can_be_chosen_and_objects_be_listed() {
        let entries = [
            ("/registry/secrets/a/b", CBC),
            ("/registry/configmaps/a/b", CBC),
            ("/mine/secrets/a/c", CLEAR),
        ];
        let resources = vec!["secrets".parse().unwrap_or_else(|_| unreachable!())];
        let options = Options { resources, ..Options::default() };
        assert_eq!(shown(&tally(&options, &entries)), ["secrets aescbc 1"]);
        let options = Options { prefixes: vec!["/mine".into()], ..Options::default() };
        assert_eq!(shown(&tally(&options, &entries)), ["secrets clear 1"]);
        let list = Some(Wanted::Name("k".into()));
        let options = Options { list, limit: 1, ..Options::default() };
        let counts = tally(&options, &entries);
        assert_eq!(
            (counts.listed.as_slice(), counts.unlisted),
            (&["/registry/secrets/a/b".to_owned()][..], 1)
        );
    }

    #[test]
    fn a_prefix_with_nothing_under_it_is_told_and_a_resource_without_objects_is_not() {
        let entries = [("/registry/pods/a/b", CLEAR), ("/calico/x/y", b"{}")];
        let blank = |prefixes: &[&str], resources: &[&str], entries| {
            let prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
            let parsed = resources.iter().map(|name| name.parse());
            let resources = parsed.collect::<Result<_, _>>().unwrap_or_else(|_| unreachable!());
            tally(&Options { prefixes, resources, ..Options::default() }, entries).blank
        };
        assert_eq!(blank(&[], &[], &entries), [""; 0], "any of the usual prefixes is enough");
        assert_eq!(blank(&[], &["secrets"], &entries), [""; 0]);
        assert_eq!(blank(&["/registry"], &["secrets"], &entries), [""; 0]);
        assert_eq!(blank(&["/registry", "/wrong"], &[], &entries), ["/wrong"]);
        assert_eq!(blank(&["/reg"], &[], &entries), ["/reg"]);
        let usual = ["/registry", "/kubernetes.io", "/openshift.io"];
        assert_eq!(blank(&[], &[], &entries[1..]), usual, "of others nothing can be told");
        let own = [("/my-own/secrets/a/b", CBC)];
        assert_eq!(blank(&[], &["pods"], &own), [""; 0], "it is kube-apiserver's");
    }

    #[test]
    fn rows_are_bounded_and_the_rest_is_unknown() {
        let mut tally = Tally::new(&Options::default());
        for number in 0..MAX_ROWS + 10 {
            let key = format!("/registry/r{number}/a");
            tally.count(key.as_bytes(), &Bytes::from_static(CLEAR));
        }
        let counts = tally.rows();
        assert_eq!(counts.rows.len(), MAX_ROWS + 1);
        let lump = counts.rows.iter().find(|row| row.under.kind == Kind::Unknown);
        assert_eq!(lump.map(|row| row.objects), Some(10));
    }
}
