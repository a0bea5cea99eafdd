//! Resource names, as `kek.key` is one, and as the replaced plugin's key_ids are: a key's,
//! `projects/P/locations/L/keyRings/R/cryptoKeys/K`, that of a version, and what may follow it.

const PARTS: [&str; 4] = ["projects/", "/locations/", "/keyRings/", "/cryptoKeys/"];
/// What is said of a text that is no name of a key.
pub(crate) const FORM: &str = "is no name of a key: write \
                               projects/P/locations/L/keyRings/R/cryptoKeys/K, without a version";
const VERSION: &str = "/cryptoKeyVersions/";

/// A resource that a text begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named<'a> {
    /// The key's name.
    pub(crate) key: &'a str,
    /// Project, location, key ring and key.
    words: [&'a str; 4],
    /// The version, if one is named.
    pub(crate) version: Option<u64>,
    /// What stands behind that.
    pub(crate) rest: &'a str,
}

impl<'a> Named<'a> {
    /// Reads a text that may be forged.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (mut rest, mut words, mut version) = (text, [""; 4], None);
        for (part, word) in PARTS.iter().zip(&mut words) {
            // Projects of a domain have dots and a colon in their names; a colon ends that of a key.
            let signs: &[u8] = if *part == PARTS[0] { b"-.:*" } else { b"-_*" };
            rest = rest.strip_prefix(part)?;
            let ends = |c: char| !c.is_ascii_alphanumeric() && !signs.contains(&(c as u8));
            (*word, rest) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
            if word.is_empty() || word.starts_with('.') {
                return None;
            }
        }
        let key = &text[..text.len() - rest.len()];
        if let Some(numbered) = rest.strip_prefix(VERSION) {
            let digits = numbered.find(':').unwrap_or(numbered.len());
            version = Some(number(&numbered[..digits])?);
            rest = &numbered[digits..];
        }
        Some(Self { key, words, version, rest })
    }

    /// Whether it is the plain name of a key; a pattern may have a `*` for any word.
    pub(crate) fn is_key(&self, pattern: bool) -> bool {
        self.version.is_none() && self.rest.is_empty() && (pattern || !self.key.contains('*'))
    }

    /// Whether it is one of the keys that `pattern` stands for.
    pub(crate) fn fits(&self, pattern: &Self) -> bool {
        let mut pairs = self.words.iter().zip(pattern.words);
        !self.key.contains('*') && pairs.all(|(word, with)| with == "*" || *word == with)
    }

    /// Whether both name the same key: a project has an id and a number.
    pub(crate) fn is_same_key(&self, other: &Self) -> bool {
        let number = |project: &str| project.bytes().all(|b| b.is_ascii_digit());
        let [project, with] = [self.words[0], other.words[0]];
        self.words[1..] == other.words[1..] && (project == with || number(project) != number(with))
    }
}

/// The name of one version of a key.
pub(crate) fn version_of(key: &str, version: u64) -> String {
    format!("{key}{VERSION}{version}")
}

/// A version as Cloud KMS counts them: 1, 2, 3 …
pub(crate) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| *number > 0 && number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "projects/example.com:p-1/locations/europe-west3/keyRings/r_1/cryptoKeys/k";

    #[test]
    fn names_are_read_with_what_follows_them() {
        let named = Named::parse(KEY).unwrap();
        assert!(named.key == KEY && named.is_key(false));
        let version = version_of(KEY, 12);
        let named = Named::parse(&version).unwrap();
        assert_eq!((named.key, named.version, named.rest), (KEY, Some(12), ""));
        let suffixed = format!("{version}:a:b/c");
        let named = Named::parse(&suffixed).unwrap();
        assert_eq!((named.key, named.version, named.rest), (KEY, Some(12), ":a:b/c"));
        let unversioned = format!("{KEY}:s");
        let named = Named::parse(&unversioned).unwrap();
        assert_eq!((named.key, named.version, named.is_key(false)), (KEY, None, false));
        let escaped = format!("{KEY}?x");
        assert!(!Named::parse(&escaped).unwrap().is_key(true));
    }

    #[test]
    fn what_is_no_name_is_not_read() {
        for text in [
            "",
            "projects/p/locations/l/keyRings/r/cryptoKeys/",
            "projects//locations/l/keyRings/r/cryptoKeys/k",
            "projects/p/keyRings/r/cryptoKeys/k",
            "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/",
            "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/01",
            "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1/x",
            "x/projects/p/locations/l/keyRings/r/cryptoKeys/k",
            "projects/p/locations/l/keyRings/../cryptoKeys/k",
            "projects/p/locations/l/keyRings/r?x/cryptoKeys/k",
            "projects/../locations/l/keyRings/r/cryptoKeys/k",
            "projects/p/locations/l/keyRings/ä/cryptoKeys/k",
        ] {
            assert_eq!(Named::parse(text), None, "{text}");
        }
    }

    #[test]
    fn patterns_stand_for_the_keys_that_they_say_and_projects_have_two_names() {
        let key = Named::parse(KEY).unwrap();
        let fits = |pattern: &str| key.fits(&Named::parse(pattern).unwrap());
        assert!(fits(KEY) && fits("projects/*/locations/*/keyRings/*/cryptoKeys/*"));
        assert!(fits("projects/example.com:p-1/locations/europe-west3/keyRings/r_1/cryptoKeys/*"));
        assert!(!fits("projects/p-1/locations/*/keyRings/*/cryptoKeys/*"));
        let any = Named::parse("projects/*/locations/*/keyRings/*/cryptoKeys/*").unwrap();
        assert!(!any.fits(&any), "a forged pattern is no key");
        let of = |project: &str| format!("projects/{project}/locations/l/keyRings/r/cryptoKeys/k");
        let same = |a: &str, b: &str| {
            Named::parse(&of(a)).unwrap().is_same_key(&Named::parse(&of(b)).unwrap())
        };
        assert!(same("p", "p") && same("p", "123") && same("123", "p"));
        assert!(!same("p", "q") && !same("123", "124"));
    }
}
