#[rate_limit(period = 1, threshold = 10, key = "{tenant}:{user.id:08x}")]
async fn format(tenant: &str, user: User) -> Option<()> {
    None
}

#[rate_limit(period = 1, threshold = 10, key = self.id)]
async fn method(&self) -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = Self::MAX, algo = "fixed", align = "+08:00", key = id)]
async fn pattern(Path(id): Path<u64>) -> Option<u64> {
    Some(id)
}

#[rate_limit(period = "month", threshold = 10, align = "Asia/Tokyo", align_day = 15, key = id)]
async fn monthly(id: u64) -> Option<u64> {
    Some(id)
}
