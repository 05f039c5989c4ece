//! What calibration found of a parameter.

/// What a parameter was found to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The parameter.
    pub name: String,
    /// Its value, and the bootstrap's 95 % interval; `None`: the data do not tell.
    pub value: Option<(f64, f64, f64)>,
    /// Spans that it rests on.
    pub spans: usize,
    /// What it rests on, or why the data do not tell.
    pub word: String,
}

/// The middle value; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}
