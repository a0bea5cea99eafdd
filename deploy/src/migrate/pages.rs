//! All objects of a resource by name, page after page.
//!
//! Only metadata is asked for: no content passes through here. Objects come in the order of
//! their keys in etcd, and so a list that has expired, or a run that was killed, goes on behind
//! the last name.

use http::StatusCode;
use serde::Deserialize;

use super::api::{Api, Call, Lost, Status};
use super::resources::Resource;

const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Objects in the first page, and in the largest.
const FIRST_PAGE: usize = 250;
const LARGEST_PAGE: usize = 1000;

/// A page is made smaller or larger so that it has about that many bytes: metadata may be long.
const PAGE_BYTES: usize = 512 * 1024;

/// One object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Item {
    #[serde(default)]
    pub(super) namespace: String,
    pub(super) name: String,
    /// Its version as it was listed.
    #[serde(default, rename = "resourceVersion")]
    pub(super) version: String,
}

/// Some objects that follow each other.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) items: Vec<Item>,
    /// How many objects there are in all, as far as it is known.
    pub(super) total: Option<u64>,
    /// Whether all names have come in order so far. Where they do not, a position says nothing.
    pub(super) ordered: bool,
}

/// Why a resource cannot be listed.
#[derive(Debug)]
pub(super) enum Unlisted {
    /// The server refuses, for this reason.
    Refused(String),
    /// There is no use in going on with anything.
    Lost(Lost),
}

/// A list that is being read.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    api: &'a Api,
    resource: &'a Resource,
    token: String,
    size: usize,
    seen: u64,
    /// Nothing up to here is handed out.
    after: Option<String>,
    last: Option<String>,
    ordered: bool,
    done: bool,
}

#[derive(Debug, Deserialize)]
struct List {
    metadata: ListMeta,
    /// Where there are none, some lists have `null`.
    items: Option<Vec<Listed>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[serde(default)]
    r#continue: String,
    remaining_item_count: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    metadata: Item,
}

impl Item {
    /// Its place in the order of keys: just the end of its key in etcd.
    pub(super) fn position(&self) -> String {
        match self.namespace.is_empty() {
            true => self.name.clone(),
            false => format!("{}/{}", self.namespace, self.name),
        }
    }

    /// The object at a position.
    pub(super) fn at(position: &str, namespaced: bool) -> Self {
        let (namespace, name) = match position.split_once('/') {
            Some(parts) if namespaced => parts,
            _ => ("", position),
        };
        Self { namespace: namespace.to_owned(), name: name.to_owned(), version: String::new() }
    }
}

impl<'a> Pages<'a> {
    /// All objects behind a position.
    pub(super) fn new(api: &'a Api, resource: &'a Resource, after: Option<String>) -> Self {
        Self {
            api,
            resource,
            token: String::new(),
            size: FIRST_PAGE,
            seen: 0,
            after,
            last: None,
            ordered: true,
            done: false,
        }
    }

    /// The next page; `None` after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<Page>, Unlisted> {
        while !self.done {
            let answer = self.api.send(&self.call()).await.map_err(Unlisted::Lost)?;
            if answer.status == StatusCode::GONE {
                self.expired(serde_json::from_slice(&answer.body).unwrap_or_default());
                continue;
            }
            if !answer.is_ok() {
                return Err(Unlisted::Refused(answer.reason()));
            }
            let list: List = serde_json::from_slice(&answer.body).map_err(|error| {
                Unlisted::Refused(format!("the server's list cannot be read: {error}"))
            })?;
            self.resize(answer.body.len(), list.items.as_ref().map_or(0, Vec::len));
            return Ok(Some(self.page(list)));
        }
        Ok(None)
    }

    fn call(&self) -> Call {
        let path = self.resource.list_path();
        let path = match self.token.is_empty() {
            true => format!("{path}?limit={}", self.size),
            false => format!("{path}?limit={}&continue={}", self.size, query(&self.token)),
        };
        Call::get(path).accept(METADATA_LIST)
    }

    /// The server no longer has the list as it was when it began. It says where the list goes
    /// on as things are now; where it does not, we begin again behind the last name.
    fn expired(&mut self, status: Status) {
        let token = status.metadata.r#continue;
        if token.is_empty() || token == self.token {
            self.seen = 0;
            self.after = self.last.take().max(self.after.take()).filter(|_| self.ordered);
            self.token.clear();
        } else {
            self.token = token;
        }
    }

    fn page(&mut self, list: List) -> Page {
        let mut page = Page::default();
        for Listed { metadata: item } in list.items.into_iter().flatten() {
            self.seen += 1;
            let position = item.position();
            self.ordered &= self.last.as_ref().is_none_or(|last| *last < position);
            if self.after.as_ref().is_none_or(|after| position > *after) {
                page.items.push(item);
            }
            self.last = Some(position);
        }
        self.token = list.metadata.r#continue;
        self.done = self.token.is_empty();
        page.ordered = self.ordered;
        page.total = match list.metadata.remaining_item_count {
            Some(remaining) => Some(self.seen + remaining),
            None => self.done.then_some(self.seen),
        };
        page
    }

    fn resize(&mut self, bytes: usize, items: usize) {
        let each = (bytes / items.max(1)).max(1);
        self.size = (PAGE_BYTES / each).clamp(1, LARGEST_PAGE);
    }
}

/// How many objects a resource has; nothing but the first name is listed.
pub(super) async fn count(api: &Api, resource: &Resource) -> Result<u64, Unlisted> {
    let mut pages = Pages::new(api, resource, None);
    pages.size = 1;
    let mut counted = 0;
    while let Some(page) = pages.next().await? {
        if let Some(total) = page.total {
            return Ok(total);
        }
        counted += page.items.len() as u64;
    }
    Ok(counted)
}

/// Tokens are base64.
fn query(token: &str) -> String {
    token.replace('%', "%25").replace('+', "%2B").replace('=', "%3D").replace('&', "%26")
}
