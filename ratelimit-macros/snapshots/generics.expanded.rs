pub async unsafe fn counted<const N: u32, T>(id: T) -> Result<T, Error>
where
    T: Key + Clone,
{
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::Format(|
                __rate_limit_out: &mut ::ratelimit_runtime::KeyWriter<'_>|
            {
                ::ratelimit_runtime::__private::FormatArgument(
                        &N,
                        ::ratelimit_runtime::__private::Formatted(
                            ::core::format_args!("{}", N),
                        ),
                    )
                    .write_argument(__rate_limit_out);
                __rate_limit_out.separator();
                ::ratelimit_runtime::__private::FormatArgument(
                        &id,
                        ::ratelimit_runtime::__private::Formatted(
                            ::core::format_args!("{}", id),
                        ),
                    )
                    .write_argument(__rate_limit_out);
            }),
            1_u64,
        ) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::check(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(::core::module_path!(), "::", "counted"),
                                                N,
                                                ::ratelimit_runtime::__private::micros(3600000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        } {
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
            .await
        {
            return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
        }
    }
    {
        let () = ();
        let twice = call(id.clone()).await?;
        Ok(twice)
    }
}
async fn shown(mut values: impl Iterator<Item = u32> + Send) -> impl IntoResponse {
    'decided: {
        let __rate_limit_pending = match match ((), 1_u64) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::check(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(::core::module_path!(), "::", "shown"),
                                                1,
                                                ::ratelimit_runtime::__private::micros(3600000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        } {
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
            .await
        {
            return ::core::result::Result::Err(__rate_limit_rejection);
        }
    }
    let __rate_limit_output = async move {
        let _ = &values;
        {
            let () = ();
            values.next().map(|value| value.to_string())
        }
    }
        .await;
    ::core::result::Result::<_, ::ratelimit_runtime::Rejection>::Ok(__rate_limit_output)
}
