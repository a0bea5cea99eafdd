//! What the server has of the resources that are meant.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::api::{Api, Call};
use super::resources::{Pattern, Resolved, Resource, Skipped, id};
use crate::Error;

#[derive(Debug, Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    versions: Vec<Version>,
    preferred_version: Option<Version>,
}

#[derive(Debug, Deserialize)]
struct Version {
    version: String,
}

#[derive(Debug, Deserialize)]
struct Served {
    resources: Vec<Serving>,
}

/// One entry of discovery.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Serving {
    name: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
    /// Only what is stored has one, and the same thing under two names has the same one.
    #[serde(default)]
    storage_version_hash: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiServices {
    items: Vec<ApiService>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiService {
    spec: ApiServiceSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiServiceSpec {
    group: String,
    service: Option<serde::de::IgnoredAny>,
}

/// Asks the server what the patterns mean.
pub(super) async fn resolve(api: &Api, patterns: &[Pattern]) -> Result<Resolved, Error> {
    let mut search = Search {
        api,
        patterns,
        resolved: Resolved::default(),
        stored: BTreeSet::new(),
        foreign: BTreeSet::new(),
    };
    if patterns.contains(&Pattern::All) {
        search.foreign = foreign_groups(api).await?;
    }
    let mut groups = Vec::new();
    if patterns.iter().any(|pattern| pattern.covers_group("")) {
        groups.push((String::new(), vec!["v1".to_owned()]));
    }
    if patterns.iter().any(
        |p| !matches!(p, Pattern::One { group, .. } | Pattern::Group(group) if group.is_empty()),
    ) {
        let list: Groups =
            fetch(api, "/apis").await?.map_err(|why| cannot_discover("/apis", &why))?;
        groups.extend(list.groups.into_iter().map(versions));
    }
    for (group, versions) in groups {
        if patterns.iter().any(|pattern| pattern.covers_group(&group)) {
            search.group(&group, &versions).await?;
        }
    }
    Ok(search.finish())
}

struct Search<'a> {
    api: &'a Api,
    patterns: &'a [Pattern],
    resolved: Resolved,
    /// What is stored already has its place under another name, as with events.
    stored: BTreeSet<(String, String)>,
    /// Groups of other API servers, with a store of their own.
    foreign: BTreeSet<String>,
}

impl Search<'_> {
    async fn group(&mut self, group: &str, versions: &[String]) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        for version in versions {
            let path = match group.is_empty() {
                true => format!("/api/{version}"),
                false => format!("/apis/{group}/{version}"),
            };
            let served: Served = match fetch(self.api, &path).await? {
                Ok(served) => served,
                Err(why) => {
                    self.skip(format!("*.{group}"), why, !self.foreign.contains(group));
                    continue;
                }
            };
            for serving in served.resources {
                if !serving.name.contains('/') && seen.insert(serving.name.clone()) {
                    self.consider(group, version, serving);
                }
            }
        }
        Ok(())
    }

    fn consider(&mut self, group: &str, version: &str, serving: Serving) {
        let can = |verb: &str| serving.verbs.iter().any(|v| v == verb);
        let resource = Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            name: serving.name.clone(),
            namespaced: serving.namespaced,
            patchable: can("patch"),
        };
        let named = self.patterns.iter().any(|pattern| pattern.names(&resource));
        let in_group =
            self.patterns.iter().any(|p| matches!(p, Pattern::Group(name) if name == group));
        let all = self.patterns.contains(&Pattern::All);
        if !(named || in_group || all) {
            return;
        }
        let rewritable = can("list") && (can("patch") || (can("update") && can("get")));
        if !rewritable {
            if named {
                let why = "the server does not let it be listed and changed: it is not stored";
                self.skip(resource.id(), why.into(), true);
            }
            return;
        }
        if !named && serving.storage_version_hash.is_empty() {
            return;
        }
        if !named && !in_group && self.foreign.contains(group) {
            let why = "served by another API server, which has a store of its own";
            return self.skip(resource.id(), why.into(), false);
        }
        let place = (serving.name, serving.storage_version_hash);
        if place.1.is_empty() || self.stored.insert(place) {
            self.resolved.resources.push(resource);
        }
    }

    fn skip(&mut self, resource: String, reason: String, matters: bool) {
        let skipped = Skipped { resource, reason, matters };
        if !self.resolved.skipped.contains(&skipped) {
            self.resolved.skipped.push(skipped);
        }
    }

    fn finish(mut self) -> Resolved {
        for pattern in self.patterns {
            let Pattern::One { group, resource } = pattern else { continue };
            let name = id(resource, group);
            let found = self.resolved.resources.iter().any(|found| pattern.names(found));
            let told = |skipped: &Skipped| {
                skipped.resource == name || skipped.resource == format!("*.{group}")
            };
            // Events are found by their other name where both are asked for.
            let twin =
                self.stored.iter().any(|(stored, hash)| stored == resource && !hash.is_empty());
            if !found && !twin && !self.resolved.skipped.iter().any(told) {
                self.skip(name, "the server has no such resource".into(), false);
            }
        }
        self.resolved.resources.sort();
        self.resolved.skipped.sort();
        self.resolved
    }
}

/// The preferred version first.
fn versions(group: Group) -> (String, Vec<String>) {
    let mut versions: Vec<String> =
        group.preferred_version.into_iter().map(|version| version.version).collect();
    for Version { version } in group.versions {
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    (group.name, versions)
}

/// Groups that other API servers answer for. Who may not see them takes none for foreign.
async fn foreign_groups(api: &Api) -> Result<BTreeSet<String>, Error> {
    let path = "/apis/apiregistration.k8s.io/v1/apiservices";
    let services: ApiServices = fetch(api, path).await?.unwrap_or_default();
    let foreign = services.items.into_iter().filter(|item| item.spec.service.is_some());
    Ok(foreign.map(|item| item.spec.group).collect())
}

async fn fetch<T: for<'de> Deserialize<'de>>(
    api: &Api,
    path: &str,
) -> Result<Result<T, String>, Error> {
    let answer = api.send(&Call::get(path)).await;
    let answer =
        answer.map_err(|lost| lost.into_error("cannot discover what the server stores"))?;
    if !answer.is_ok() {
        return Ok(Err(answer.reason()));
    }
    Ok(serde_json::from_slice(&answer.body).map_err(|error| format!("{path} is no list: {error}")))
}

fn cannot_discover(path: &str, why: &str) -> Error {
    Error::failed("cannot discover what the server stores").because(format!("{path}: {why}"))
}
