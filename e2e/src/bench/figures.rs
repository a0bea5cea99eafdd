//! The figures of one run, and the bars that they are held against.

use std::collections::BTreeMap;

use serde::Serialize;

use super::command::Work;
use super::elf::Binary;
use super::fake::Calls;
use super::memory::Memory;
use super::migrate::Turns;
use super::reload::Reloads;

/// Everything that was measured of one subject.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// What was measured.
    pub subject: String,
    /// Its executable, where it is known.
    pub binary: Option<Binary>,
    /// Start to first healthy Status.
    pub start_ms: Option<Spread>,
    /// Calls to the fake endpoint until then.
    pub start_calls: Option<Calls>,
    /// Memory before the load.
    pub idle: Option<Memory>,
    /// The same with that of the plugins behind it.
    pub idle_together: Option<Memory>,
    /// Memory after the load.
    pub loaded: Option<Memory>,
    /// Calls made in all.
    pub calls: u64,
    /// One for each operation and concurrency.
    pub load: Vec<Cell>,
    /// What it was measured beside, in turns.
    pub beside: Option<Beside>,
    /// What a changed configuration costs.
    pub reloads: Option<Reloads>,
    /// What work on a cluster costs.
    pub work: Option<Work>,
    /// The same, in turns with something else.
    pub turns: Option<Turns>,
}

/// What is behind a subject, a plugin or a fake endpoint, driven without it.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// What was measured.
    pub subject: String,
    /// One for each operation and concurrency.
    pub load: Vec<Cell>,
}

/// Several measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The one in the middle.
    pub median: f64,
    /// The largest.
    pub max: f64,
    /// How many there are.
    pub count: usize,
}

/// One operation at one concurrency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Status, Encrypt or Decrypt.
    pub operation: &'static str,
    /// Calls in flight at any moment, on one connection.
    pub concurrency: usize,
    /// Calls that were measured.
    pub calls: u64,
    /// Calls per second.
    pub rate: f64,
    /// Half of the calls were answered within this, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 calls were answered within this.
    pub p99_us: f64,
    /// All of them were answered within this.
    pub max_us: f64,
    /// CPU time of the plugin's process for each call.
    pub server_cpu_us: Option<f64>,
    /// Calls to the backend for each call, as the fake endpoint counts them, or the plugin.
    pub backend_calls: Option<f64>,
    /// The same by the backend's operation.
    pub backend_operations: Option<BTreeMap<String, f64>>,
}

/// Which side of a limit is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The smaller the better.
    AtMost,
    /// The larger the better.
    AtLeast,
}

/// A promise about a figure.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// What is promised.
    pub name: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// How much.
    pub limit: f64,
    /// On which side of it.
    pub direction: Direction,
    /// The value. `None` if this run did not measure it.
    pub value: fn(&Figures) -> Option<f64>,
}

/// A bar and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// What is promised.
    pub bar: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// On which side of the limit is good.
    pub direction: Direction,
    /// How much.
    pub limit: f64,
    /// What was measured.
    pub value: Option<f64>,
    /// Whether it is met; a value that was not measured meets nothing.
    pub met: bool,
}

/// Holds a subject's figures against its bars.
pub fn judge(bars: &[Bar], own: &Figures) -> Vec<Judgement> {
    bars.iter()
        .map(|bar| {
            let value = (bar.value)(own);
            let met = value.is_some_and(|value| match bar.direction {
                Direction::AtMost => value <= bar.limit,
                Direction::AtLeast => value >= bar.limit,
            });
            let Bar { name, unit, limit, direction, .. } = *bar;
            Judgement { bar: name, unit, direction, limit, value, met }
        })
        .collect()
}

impl Figures {
    /// Nothing measured yet.
    pub fn of(subject: &str) -> Self {
        Self {
            subject: subject.to_owned(),
            binary: None,
            start_ms: None,
            start_calls: None,
            idle: None,
            idle_together: None,
            loaded: None,
            calls: 0,
            load: Vec::new(),
            beside: None,
            reloads: None,
            work: None,
            turns: None,
        }
    }

    /// The subject's figures of an operation at a concurrency, and those of what is behind it
    /// alone.
    pub fn pair(&self, operation: &str, concurrency: usize) -> Option<(&Cell, &Cell)> {
        let wanted = |cell: &&Cell| cell.operation == operation && cell.concurrency == concurrency;
        let alone = self.beside.as_ref()?.load.iter().find(wanted)?;
        Some((self.load.iter().find(wanted)?, alone))
    }
}

impl Spread {
    /// `None` if there are no values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Some(Self { min, median, max, count: values.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        Figures { start_ms: Spread::of(vec![9.0, 1.0, 4.0]), ..Figures::of("x") }
    }

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        assert_eq!(Spread::of(vec![]), None);
        let odd = Spread::of(vec![9.0, 1.0, 4.0]).unwrap();
        assert_eq!((odd.min, odd.median, odd.max, odd.count), (1.0, 4.0, 9.0, 3));
        assert_eq!(Spread::of(vec![4.0, 1.0]).unwrap().median, 2.5);
    }

    #[test]
    fn a_bar_is_met_on_its_own_side_only_and_never_without_a_value() {
        let bar = |limit, direction| Bar {
            name: "start",
            unit: "ms",
            limit,
            direction,
            value: |own| Some(own.start_ms?.median),
        };
        let met = |bar, figures: &Figures| judge(&[bar], figures)[0].met;
        assert!(met(bar(4.0, Direction::AtMost), &figures()));
        assert!(!met(bar(3.9, Direction::AtMost), &figures()));
        assert!(met(bar(4.0, Direction::AtLeast), &figures()));
        assert!(!met(bar(4.1, Direction::AtLeast), &figures()));
        let unmeasured = Figures { start_ms: None, ..figures() };
        assert!(!met(bar(1000.0, Direction::AtMost), &unmeasured));
    }
}
