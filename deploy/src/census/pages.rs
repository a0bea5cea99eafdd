//! Reads etcd page by page.

use std::collections::VecDeque;
use std::time::SystemTime;

use bytes::{BufMut, Bytes, BytesMut};

use super::resource::PREFIXES;
use super::tally::{Counts, Tally};
use super::{Census, Options, Step};
use crate::Error;
use crate::etcd::{Etcd, RangeRequest, RangeResponse, Trouble};

/// What a page should have; larger ones gain little, and etcd must hold them too.
const PAGE: usize = 2 * 1024 * 1024;
/// What a page may have before it is asked for in smaller helpings.
const MOST: usize = 4 * PAGE;
/// What one object alone may have: more than etcd is ever set to take.
const LARGEST: usize = 64 * 1024 * 1024;
/// Objects of the first page, whose size nobody knows.
const FIRST: i64 = 64;
/// Objects of a page at most.
const FULL: i64 = 5000;

/// Counts what is stored now, all of it as it was at one revision.
///
/// If etcd compacts that revision away meanwhile, the rest is counted at a newer one; `watch`
/// is told.
pub async fn count(
    etcd: &mut Etcd,
    options: &Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<Census, Error> {
    let started = SystemTime::now();
    let mut reader = Reader {
        ranges: ranges(options),
        tally: Tally::new(options),
        limit: FIRST,
        revision: 0,
        first_revision: 0,
        done: 0,
        total: 0,
    };
    while let Some(range) = reader.ranges.pop_front() {
        reader.read(etcd, range, watch).await?;
    }
    if !options.resources.is_empty() {
        reader.look_around(etcd, watch).await?;
    }
    let Counts { rows, other, blank, listed, unlisted } = reader.tally.rows();
    Ok(Census {
        cluster: etcd.cluster(),
        revision: reader.revision,
        first_revision: reader.first_revision,
        started,
        finished: SystemTime::now(),
        rows,
        history: Vec::new(),
        other,
        blank,
        listed,
        unlisted,
    })
}

/// Keys from the first up to, not including, the second.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range(Bytes, Bytes);

struct Reader {
    ranges: VecDeque<Range>,
    tally: Tally,
    /// Objects of the next page.
    limit: i64,
    revision: i64,
    first_revision: i64,
    done: u64,
    total: u64,
}

impl Reader {
    async fn read(
        &mut self,
        etcd: &mut Etcd,
        Range(mut from, end): Range,
        watch: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), Error> {
        let mut is_first = true;
        loop {
            let answer = self.page(etcd, &from, &end, watch).await?;
            if is_first {
                is_first = false;
                self.total += u64::try_from(answer.count).unwrap_or_default();
                watch(Step::Total(self.total));
            }
            let mut last = None;
            for entry in &answer.kvs {
                // A page that goes back would be read for ever.
                if entry.key < from {
                    return Err(Error::failed("etcd answers with keys that were not asked for"));
                }
                self.tally.count(&entry.key, &entry.value);
                last = Some(&entry.key);
            }
            self.done += answer.kvs.len() as u64;
            watch(Step::Done(self.done));
            match last {
                Some(last) if answer.more => from = after(last),
                _ => return Ok(()),
            }
        }
    }

    /// There may be no object of just these resources: is there any other where they would be?
    async fn look_around(
        &mut self,
        etcd: &mut Etcd,
        watch: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), Error> {
        for prefix in self.tally.blank() {
            self.limit = 1;
            let Range(from, end) = below(&format!("{prefix}/"));
            for entry in &self.page(etcd, &from, &end, watch).await?.kvs {
                self.tally.see(&entry.key);
            }
        }
        Ok(())
    }

    /// One page from `from` on.
    async fn page(
        &mut self,
        etcd: &mut Etcd,
        from: &Bytes,
        end: &Bytes,
        watch: &mut dyn FnMut(Step<'_>),
    ) -> Result<RangeResponse, Error> {
        loop {
            let request = RangeRequest {
                key: from.clone(),
                range_end: end.clone(),
                limit: self.limit,
                revision: self.revision,
                ..Default::default()
            };
            let most = if self.limit == 1 { LARGEST } else { MOST };
            match etcd.range(request, most).await {
                Ok((header, answer)) => {
                    if self.revision == 0 {
                        self.revision = header.revision;
                        if self.first_revision == 0 {
                            self.first_revision = header.revision;
                        }
                    }
                    self.adapt(&answer);
                    return Ok(answer);
                }
                Err(Trouble::Compacted) if self.revision != 0 => {
                    watch(Step::Note(&format!(
                        "etcd has compacted revision {} away: the rest is counted at a newer one",
                        self.revision
                    )));
                    self.revision = 0;
                }
                Err(Trouble::TooLarge) if self.limit > 1 => self.limit = (self.limit / 4).max(1),
                Err(Trouble::TooLarge) => {
                    let key = String::from_utf8_lossy(from).into_owned();
                    let what = format!("the object at or after {key:?} is larger than 64 MiB");
                    return Err(Error::failed(what));
                }
                Err(trouble) => return Err(trouble.into_error()),
            }
        }
    }

    /// As many objects as make a page, by what this one's were like; slowly upwards.
    fn adapt(&mut self, answer: &RangeResponse) {
        let size: usize = answer.kvs.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
        let each = size / answer.kvs.len().max(1);
        let fits = i64::try_from(PAGE / each.max(1)).unwrap_or(FULL);
        self.limit = fits.min(self.limit.saturating_mul(4)).clamp(1, FULL);
    }
}

/// All of etcd, or just where the wanted resources are.
fn ranges(options: &Options) -> VecDeque<Range> {
    let prefixes: Vec<&str> = match options.prefixes.as_slice() {
        [] => PREFIXES.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let paths: Option<Vec<Vec<String>>> =
        options.resources.iter().map(|selector| selector.paths()).collect();
    let mut found: Vec<Range> = match paths {
        Some(paths) if !paths.is_empty() => {
            let mut paths: Vec<String> = paths.into_iter().flatten().collect();
            paths.sort();
            paths.dedup();
            let each = prefixes.iter().flat_map(|prefix| {
                paths.iter().map(move |path| below(&format!("{prefix}/{path}")))
            });
            each.collect()
        }
        _ if options.prefixes.is_empty() => vec![Range(vec![0].into(), vec![0].into())],
        _ => prefixes.iter().map(|prefix| below(&format!("{prefix}/"))).collect(),
    };
    // What lies inside of another one would be counted twice.
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found.dedup_by(|next, kept| next.0 < kept.1);
    found.into()
}

/// All keys that begin with `prefix`, which ends with a slash.
fn below(prefix: &str) -> Range {
    let stem = prefix.as_bytes().strip_suffix(b"/").unwrap_or(prefix.as_bytes());
    // A slash is followed by a nought.
    Range(Bytes::copy_from_slice(prefix.as_bytes()), [stem, b"0"].concat().into())
}

/// The next key that there can be.
fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shown(options: &Options) -> Vec<String> {
        let show = |Range(from, end)| {
            format!("{}..{}", String::from_utf8_lossy(&from), String::from_utf8_lossy(&end))
        };
        ranges(options).into_iter().map(show).collect()
    }

    #[test]
    fn no_more_of_etcd_is_read_than_is_asked_for() {
        let mut options = Options::default();
        assert_eq!(shown(&options), ["\0..\0"]);
        options.prefixes = vec!["/registry".into()];
        assert_eq!(shown(&options), ["/registry/../registry0"]);
        options.resources =
            vec!["secrets".parse().unwrap(), "widgets.example.com".parse().unwrap()];
        assert_eq!(
            shown(&options),
            [
                "/registry/example.com/widgets/../registry/example.com/widgets0",
                "/registry/secrets/../registry/secrets0",
            ]
        );
        options.resources = vec!["services.x.k8s.io".parse().unwrap(), "services".parse().unwrap()];
        assert_eq!(
            shown(&options),
            [
                "/registry/services/../registry/services0",
                "/registry/x.k8s.io/services/../registry/x.k8s.io/services0",
            ],
            "services/specs lies inside"
        );
        options.resources.push("*.apps".parse().unwrap());
        assert_eq!(shown(&options), ["/registry/../registry0"], "a wildcard may be anywhere");
        options.prefixes.clear();
        assert_eq!(shown(&options), ["\0..\0"]);
    }

    #[test]
    fn pages_grow_slowly_and_shrink_at_once() {
        let page = |count: usize, size: usize| {
            let value = Bytes::from(vec![0; size]);
            let entry = crate::etcd::KeyValue { value, ..Default::default() };
            RangeResponse { kvs: vec![entry; count], ..Default::default() }
        };
        let mut reader = Reader {
            ranges: VecDeque::new(),
            tally: Tally::new(&Options::default()),
            limit: FIRST,
            revision: 0,
            first_revision: 0,
            done: 0,
            total: 0,
        };
        reader.adapt(&page(10, 100));
        assert_eq!(reader.limit, 4 * FIRST);
        reader.adapt(&page(3, 1_500_000));
        assert_eq!(reader.limit, 1);
        reader.adapt(&page(0, 0));
        assert_eq!(reader.limit, 4);
    }
}
