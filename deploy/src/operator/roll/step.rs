//! What to do next, from what there is: no call of the API, so that every case can be tried.

use super::goal::Goal;
use super::plane::{Member, Plane};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Change the template of this workload.
    Write(usize),
    /// Evict this pod.
    Evict(usize),
}

/// What to do next, and what is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outlook {
    pub(super) step: Option<Step>,
    pub(super) waits: Vec<String>,
}

impl Outlook {
    fn wait(waits: Vec<String>) -> Self {
        Self { step: None, waits }
    }
}

/// The template is ours: it is changed when nothing else is under way, and then its own
/// controller replaces the pods. What is stuck on one of our sidecars is not waited for, because
/// the change may be just what mends it.
pub(super) fn by_template(plane: &Plane, goal: &Goal) -> Outlook {
    let stale = plane.workloads.iter().position(|workload| !goal.fits_template(workload));
    let Some(stale) = stale else {
        let mut waits = unrest(plane);
        waits.extend(misfits(plane, goal).map(|(_, why)| why));
        return Outlook::wait(waits);
    };
    let mut waits = unrest(plane);
    let stuck = plane.pods.iter().any(Member::is_stuck)
        || plane.workloads.iter().any(|workload| workload.gave_up());
    if waits.is_empty() || stuck {
        return Outlook { step: Some(Step::Write(stale)), waits: Vec::new() };
    }
    let title = plane.workloads[stale].title();
    waits.insert(0, format!("{title} is to be changed as soon as what is under way is done"));
    Outlook::wait(waits)
}

/// The template is another's: pods that are not as they should be are evicted, one at a time, the
/// oldest first, and only while all others are ready.
pub(super) fn by_eviction(plane: &Plane, goal: &Goal) -> Outlook {
    let stale: Vec<(usize, String)> = misfits(plane, goal).collect();
    if stale.is_empty() {
        return Outlook::wait(unrest(plane));
    }
    let reasons = || stale.iter().map(|(_, why)| why.clone());
    let mut waits: Vec<String> = movement(plane);
    if waits.is_empty() {
        let unready: Vec<usize> = indices(plane, |pod| !pod.is_ready());
        let next = match unready.as_slice() {
            [] => stale.iter().map(|(index, _)| *index).min_by_key(|index| {
                let pod = &plane.pods[*index];
                (pod.created(), pod.name())
            }),
            // It serves nobody, and all others are ready.
            [only] => stale.iter().map(|(index, _)| *index).find(|index| index == only),
            // Those that wait for a sidecar that does not start would wait for each other.
            _ => stale.iter().map(|(index, _)| *index).find(|index| plane.pods[*index].is_stuck()),
        };
        if let Some(next) = next {
            return Outlook { step: Some(Step::Evict(next)), waits: reasons().collect() };
        }
        waits.extend(plane.pods.iter().filter_map(Member::trouble));
    }
    waits.extend(reasons());
    waits.dedup();
    Outlook::wait(waits)
}

/// Others put the sidecars in.
pub(super) fn by_others(plane: &Plane, goal: &Goal) -> Outlook {
    let mut waits = unrest(plane);
    waits.extend(plane.pods.iter().filter_map(|pod| goal.lacks(pod)));
    Outlook::wait(waits)
}

/// Why the pods are not all there and ready, if they are not.
fn unrest(plane: &Plane) -> Vec<String> {
    let mut list = movement(plane);
    let unready = plane.pods.iter().filter(|pod| !pod.is_ending()).filter_map(Member::trouble);
    list.extend(unready);
    list
}

/// Pods that come, go or are missing.
fn movement(plane: &Plane) -> Vec<String> {
    let mut list: Vec<String> =
        plane.workloads.iter().filter_map(|workload| workload.unsettled()).collect();
    let standing = indices(plane, |pod| !pod.is_ending()).len();
    let wanted = plane.wanted();
    if !plane.workloads.is_empty() && standing != wanted {
        list.push(format!("there are {standing} pods of kube-apiserver, {wanted} are wanted"));
    }
    list.extend(plane.pods.iter().filter(|pod| pod.is_ending()).filter_map(Member::trouble));
    list
}

/// Pods that are to go or to be replaced, and why; those that are going anyway are not among them.
fn misfits(plane: &Plane, goal: &Goal) -> impl Iterator<Item = (usize, String)> {
    let standing = plane.pods.iter().enumerate().filter(|(_, pod)| !pod.is_ending());
    standing.filter_map(|(index, pod)| Some((index, goal.misfit(pod)?)))
}

fn indices(plane: &Plane, is: impl Fn(&Member) -> bool) -> Vec<usize> {
    let all = plane.pods.iter().enumerate();
    all.filter(|(_, pod)| is(pod)).map(|(index, _)| index).collect()
}
