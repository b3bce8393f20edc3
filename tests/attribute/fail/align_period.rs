use ratelimit_runtime::rate_limit;

#[rate_limit(period = "7h", threshold = 2, algo = "fixed", align = "utc")]
async fn does_not_divide_a_day() -> Option<()> {
    None
}

#[rate_limit(period = "36h", threshold = 2, algo = "fixed", align = "utc")]
async fn is_not_whole_days() -> Option<()> {
    None
}

#[rate_limit(period = "30d", threshold = 2, algo = "fixed", align = "utc")]
async fn begins_on_no_day_of_a_calendar() -> Option<()> {
    None
}

fn main() {}
