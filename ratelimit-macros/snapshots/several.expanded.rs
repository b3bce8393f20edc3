async fn query(tenant: &str, user: u64, rows: u64) -> Result<(), Rejection> {
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::Format(|
                __rate_limit_out: &mut ::ratelimit_runtime::KeyWriter<'_>|
            {
                ::ratelimit_runtime::__private::FormatArgument(
                        &user,
                        ::ratelimit_runtime::__private::Formatted(
                            ::core::format_args!("{}", user),
                        ),
                    )
                    .write_argument(__rate_limit_out);
            }),
            ::ratelimit_runtime::__private::cost(rows),
            ::ratelimit_runtime::__private::key(&tenant),
            ::ratelimit_runtime::__private::cost(1),
        ) {
            (
                __rate_limit_key,
                __rate_limit_cost,
                __rate_limit_key_2,
                __rate_limit_cost_2,
            ) => {
                let _ = (&__rate_limit_key, &__rate_limit_cost);
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
                                            &::ratelimit_runtime::Limit::token_bucket(
                                                ::core::concat!(
                                                    ::core::concat!(::core::module_path!(), "::", "query"), "#1"
                                                ),
                                                10,
                                                ::ratelimit_runtime::__private::micros(1000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key,
                                __rate_limit_cost,
                            ),
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Chosen,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                "tenant",
                                                5_000,
                                                ::ratelimit_runtime::__private::micros(86400000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_2,
                                __rate_limit_cost_2,
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
        Ok(())
    }
}
