//! OpenMetrics text.

use std::fmt::Write;

/// The text so far.
#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn gauge(&mut self, name: &str, help: &str) {
        self.family(name, "gauge", help);
    }

    /// `name` is without the `_total` of its samples.
    pub(super) fn counter(&mut self, name: &str, help: &str) {
        self.family(name, "counter", help);
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str) {
        self.family(name, "histogram", help);
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        self.labels(labels);
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, " {value}");
    }

    /// The samples of a histogram; `within` counts everything up to each bound.
    pub(super) fn distribution(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        within: impl Iterator<Item = (f64, f64)>,
        sum: f64,
        count: f64,
    ) {
        let bucket = format!("{name}_bucket");
        let mut bounds: Vec<(String, f64)> =
            within.map(|(bound, count)| (format!("{bound:?}"), count)).collect();
        bounds.push(("+Inf".to_owned(), count));
        for (bound, count) in bounds {
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            self.sample(&bucket, &labels, count);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("# EOF\n");
        self.0
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    fn labels(&mut self, labels: &[(&str, &str)]) {
        for (index, (name, value)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            self.0.push_str(name);
            self.0.push_str("=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
    }
}
