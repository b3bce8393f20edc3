async fn hidden(mut name: String) -> impl IntoResponse {
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
                                                ::core::concat!(::core::module_path!(), "::", "hidden"),
                                                10,
                                                ::ratelimit_runtime::__private::micros(1000000u64),
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
        let _ = &name;
        {
            let () = ();
            name.push('!');
            name
        }
    }
        .await;
    ::core::result::Result::<_, ::ratelimit_runtime::Rejection>::Ok(__rate_limit_output)
}
async fn text() -> String {
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
                                                ::core::concat!(::core::module_path!(), "::", "text"),
                                                10,
                                                ::ratelimit_runtime::__private::micros(1000000u64),
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
            return ::ratelimit_runtime::__private::reject_with(
                __rate_limit_rejection,
                |rejection| rejection.to_string(),
            );
        }
    }
    {
        let () = ();
        String::new()
    }
}
async fn hidden_text() -> impl IntoResponse {
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
                                                ::core::concat!(
                                                    ::core::module_path!(), "::", "hidden_text"
                                                ),
                                                10,
                                                ::ratelimit_runtime::__private::micros(1000000u64),
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
            return ::ratelimit_runtime::__private::reject_with(
                __rate_limit_rejection,
                busy,
            );
        }
    }
    {
        let () = ();
        String::new()
    }
}
