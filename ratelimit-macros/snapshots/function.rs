#[rate_limit(period = 30, threshold = 2)]
async fn plain() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    period = "1s",
    threshold = 10,
    algo = "token_bucket",
    burst = 20,
    key = (tenant, user.id),
    cost = rows / 100,
    name = "list",
)]
/// Documented.
#[must_use]
pub(crate) async fn list<'a, T: AsRef<str>>(tenant: &'a T, user: User, rows: u64) -> Option<&'a str>
where
    T: Sync,
{
    #![allow(unused)]
    Some(tenant.as_ref())
}
