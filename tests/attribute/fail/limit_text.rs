use ratelimit_runtime::rate_limit;

#[rate_limit("2 each 30s")]
async fn another_form() -> Option<()> {
    None
}

#[rate_limit("10/fortnight", key = user)]
async fn unknown_unit(user: u64) -> Option<()> {
    drop(user);
    None
}

#[rate_limit(key = user, "10/s")]
async fn not_in_first_place(user: u64) -> Option<()> {
    drop(user);
    None
}

#[rate_limit("10/s", period = 30)]
async fn written_twice() -> Option<()> {
    None
}

#[rate_limit("10/s burst 20 fixed")]
async fn burst_without_a_bucket() -> Option<()> {
    None
}

#[rate_limit("10/s", cost = 11)]
async fn too_costly() -> Option<()> {
    None
}

#[rate_limit("10/s burst 20", algo = "fixed")]
async fn burst_of_the_text_without_a_bucket() -> Option<()> {
    None
}

#[rate_limit("5/minute 30s")]
async fn two_periods() -> Option<()> {
    None
}

#[rate_limit("5//s")]
async fn two_slashes() -> Option<()> {
    None
}

fn main() {}
