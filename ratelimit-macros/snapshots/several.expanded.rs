async fn query(tenant: &str, user: u64, rows: u32) -> Result<(), Rejection> {
    'decided: {
        let pending = match match (
            ::ratelimit_runtime::__private::cost(rows),
            ::ratelimit_runtime::__private::key(&tenant),
            ::ratelimit_runtime::__private::cost(1),
        ) {
            (__ratelimit_cost, __ratelimit_key_2, __ratelimit_cost_2) => {
                match ::ratelimit_runtime::__private::Format((
                    ::ratelimit_runtime::__private::Hole(
                            ::ratelimit_runtime::__private::AnyHole(&user),
                        )
                        .piece(),
                )) {
                    __ratelimit_key => {
                        let _ = (&__ratelimit_key, __ratelimit_cost);
                        ::ratelimit_runtime::__private::check_all(
                            &::ratelimit_runtime::__private::LimitGroup::new([
                                ::ratelimit_runtime::__private::CallPart::constant(
                                    match const {
                                        &::ratelimit_runtime::Limit::token_bucket(
                                            ::core::concat!(
                                                ::core::concat!(::core::module_path!(), "::", "query"), "#1"
                                            ),
                                            10,
                                            ::ratelimit_runtime::__private::micros(1000000u64),
                                        )
                                    } {
                                        limit => {
                                            static SITE: ::ratelimit_runtime::__private::Site =
                                                ::ratelimit_runtime::__private::Site::new(
                                                ::core::concat!(
                                                    ::core::file!(), ":", ::core::line!(), ":",
                                                    ::core::column!()
                                                ),
                                            );
                                            SITE.visit(limit)
                                        }
                                    },
                                    &__ratelimit_key,
                                    __ratelimit_cost,
                                ),
                                ::ratelimit_runtime::__private::CallPart::constant(
                                    match const {
                                        &::ratelimit_runtime::Limit::sliding(
                                            "tenant",
                                            5_000,
                                            ::ratelimit_runtime::__private::micros(86400000000u64),
                                        )
                                    } {
                                        limit => {
                                            static SITE: ::ratelimit_runtime::__private::Site =
                                                ::ratelimit_runtime::__private::Site::named(
                                                ::core::concat!(
                                                    ::core::file!(), ":", ::core::line!(), ":",
                                                    ::core::column!()
                                                ),
                                            );
                                            SITE.visit(limit)
                                        }
                                    },
                                    &__ratelimit_key_2,
                                    __ratelimit_cost_2,
                                ),
                            ]),
                        )
                    }
                }
            }
        } {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject(rejection);
        }
    }
    {
        let () = ();
        Ok(())
    }
}
