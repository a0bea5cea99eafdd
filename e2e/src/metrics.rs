//! Reading Prometheus text, kube-apiserver's and ours.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// One line of `/metrics`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its name, with `_bucket`, `_sum` or `_count` where there is one.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

impl Metrics {
    /// Parses the text format; a line that is not understood is an error.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines
            .map(|line| sample(line).with_context(|| format!("not a metric: {line}")))
            .collect::<Result<_>>()?;
        Ok(Self { samples })
    }

    /// All samples of that name that carry these labels (and maybe more).
    pub fn find<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|found| found == value))
        })
    }

    /// The sum over all samples of that name that carry these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).map(|sample| sample.value).sum()
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(key.to_owned(), value);
            rest = after;
        }
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The text up to the closing quote, unescaped, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_escapes_and_values_are_read() {
        let text =
            "# HELP a x\na{b=\"c,d}\",e=\"q\\\"\\\\\\n\"} 1.5e3\na{b=\"x\"} 2 1712\nplain 7\n";
        let metrics = Metrics::parse(text).unwrap();
        let first = metrics.find("a", &[("b", "c,d}")]).next().unwrap();
        assert_eq!(first.labels["e"], "q\"\\\n");
        assert_eq!(first.value, 1500.0);
        assert_eq!(metrics.sum("a", &[]), 1502.0);
        assert_eq!(metrics.sum("plain", &[]), 7.0);
        assert_eq!(metrics.find("b", &[]).count(), 0);
    }

    #[test]
    fn a_line_that_is_no_metric_is_an_error() {
        for text in ["a{b=\"c} 1", "a", "a{b=\"c\"}", "a x"] {
            Metrics::parse(text).unwrap_err();
        }
    }
}
