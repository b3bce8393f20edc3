use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, scope = "proces")]
async fn typo() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, scope = "cluster")]
async fn other_scope() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, scope = process)]
async fn unquoted() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, on_error = "open")]
async fn other_policy() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, on_error = |error| panic!())]
async fn closure() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, shadow = "true")]
async fn quoted() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, shadow = 1)]
async fn number() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, hidden = "true")]
async fn quoted_hidden() -> Option<()> {
    None
}

#[rate_limit(limit(period = 30, threshold = 2, hidden = yes))]
async fn word_in_a_group() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, dry_run = true)]
async fn synonym() -> Option<()> {
    None
}

fn main() {}
