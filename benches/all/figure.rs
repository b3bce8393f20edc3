//! Formats numbers for readers.

/// Returns three significant digits, or all digits of a whole number, with commas between thousands.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 || size.fract() == 0.0 => grouped(value.round() as u64),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns so many significant digits, with commas between thousands.
pub(crate) fn rounded(value: f64, digits: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let place = value.abs().log10().floor() as i32 + 1 - digits;
    if place < 0 {
        return format!("{value:.*}", place.unsigned_abs() as usize);
    }
    let unit = 10_f64.powi(place);
    grouped(((value / unit).round() * unit) as u64)
}

/// Returns the digits with commas between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
