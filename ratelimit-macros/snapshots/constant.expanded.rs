async fn log_in(user: u64) -> Result<(), Rejection> {
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::key(&user),
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
                                        ::ratelimit_runtime::__private::SiteName::Constant,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::on_error(
                                                ::ratelimit_runtime::__private::without_permit(LOGIN),
                                                ::ratelimit_runtime::OnError::Deny,
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
        Ok(())
    }
}
async fn query(user: u64) -> Result<(), Rejection> {
    'decided: {
        let __rate_limit_pending = match match (
            (),
            1_u64,
            ::ratelimit_runtime::__private::key(&user),
        ) {
            (__rate_limit_key, __rate_limit_cost, __rate_limit_key_1) => {
                const {
                    ::ratelimit_runtime::__private::decided_together(
                        &[
                            &::ratelimit_runtime::__private::limit(LOGIN),
                            &::ratelimit_runtime::Limit::sliding(
                                "limit",
                                5_000,
                                ::ratelimit_runtime::__private::micros(86400000000u64),
                            ),
                        ],
                    )
                };
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
                                        ::ratelimit_runtime::__private::SiteName::Constant,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::__private::without_permit(LOGIN)
                                        })
                                },
                                &__rate_limit_key_1,
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
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(
                                                    ::core::concat!(::core::module_path!(), "::", "query"), "#2"
                                                ),
                                                5_000,
                                                ::ratelimit_runtime::__private::micros(86400000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key,
                                __rate_limit_cost,
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
