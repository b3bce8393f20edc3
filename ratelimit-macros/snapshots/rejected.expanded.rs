async fn hidden(mut name: String) -> impl IntoResponse {
    'decided: {
        let pending = match ::ratelimit_runtime::__private::check(
            match const {
                &::ratelimit_runtime::Limit::sliding(
                    ::core::concat!(::core::module_path!(), "::", "hidden"),
                    10,
                    ::ratelimit_runtime::__private::micros(1000000u64),
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        ) {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::core::result::Result::Err(rejection);
        }
    }
    let output = async move {
        let _ = &name;
        {
            let () = ();
            name.push('!');
            name
        }
    }
        .await;
    ::core::result::Result::<_, ::ratelimit_runtime::Rejection>::Ok(output)
}
async fn text() -> String {
    'decided: {
        let pending = match ::ratelimit_runtime::__private::check(
            match const {
                &::ratelimit_runtime::Limit::sliding(
                    ::core::concat!(::core::module_path!(), "::", "text"),
                    10,
                    ::ratelimit_runtime::__private::micros(1000000u64),
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        ) {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject_with(
                rejection,
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
        let pending = match ::ratelimit_runtime::__private::check(
            match const {
                &::ratelimit_runtime::Limit::sliding(
                    ::core::concat!(::core::module_path!(), "::", "hidden_text"),
                    10,
                    ::ratelimit_runtime::__private::micros(1000000u64),
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        ) {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject_with(rejection, busy);
        }
    }
    {
        let () = ();
        String::new()
    }
}
