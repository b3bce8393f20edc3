#[rate_limit(period = "1h", threshold = N, key = "{N}:{id}")]
pub async unsafe fn counted<const N: u32, T>(id: T) -> Result<T, Error>
where
    T: Key + Clone,
{
    let twice = call(id.clone()).await?;
    Ok(twice)
}

#[rate_limit(period = "1h", threshold = 1)]
async fn shown(mut values: impl Iterator<Item = u32> + Send) -> impl IntoResponse {
    values.next().map(|value| value.to_string())
}
