#[rate_limit(period = PERIOD, threshold = MAX, scope = "process", wait = "5s")]
async fn patient() -> Option<()> {
    None
}

#[rate_limit(period = 1, threshold = 10, on_error = "deny", shadow = true, crate = crate::limits)]
async fn shadow() -> Option<()> {
    None
}

#[rate_limit(limit(limit = LOGIN, hidden = false), limit(period = 1, threshold = 10), hidden = true)]
async fn hidden() -> Option<()> {
    None
}

#[rate_limit(period = 1, threshold = 100, name = "leased", lease = LEASE, notify_at = 80)]
async fn leased() -> Option<()> {
    None
}

#[rate_limit(period = 1, threshold = 100, key = tenant, once = id, within = "1h", on_error = "deny")]
async fn once(tenant: u8, id: u8) -> Option<()> {
    None
}
